# SPDX-License-Identifier: MIT
"""weir_torch_build.py: compiles weir_torch.cpp, which lies beside this file, for the PyTorch of this interpreter.

    python weir_torch_build.py OUTPUT LIBRARY

`weir torch --build' and `weir run' start this script in a separate process.  The script needs a C++ compiler (CXX, else
c++) but no CUDA toolkit, because PyTorch's wheel and the wheels of CUDA have all headers.  The script replaces OUTPUT in
one step.  If PyTorch is newer than the newest PyTorch of interface.txt, weir_torch_interface.py compares the interfaces,
and weir_torch_check.cpp checks the shim on the device model of LIBRARY (libweir-preload.so).  On failure the exit status
is 1, the first line of standard output is the reason, and the compiler's output follows.
"""

import glob
import importlib.util
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True

import weir_torch_interface as interface  # pylint: disable=wrong-import-position


def folder_of(package):
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else ""


def fail(reason, details=""):
    print(reason, details, sep="\n")
    sys.exit(1)


def run(command, **options):
    """Runs the command to its end.  Returns the status with the output and the errors as one text."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False, **options)


def cuda_includes(version):
    """Returns the compiler's options for the folders of CUDA's headers.

    The last folder is Triton's, which has the headers in crt/ that the wheels of CUDA 13 lack."""
    major = (version or "").split(".")[0]
    nvidia, triton = folder_of("nvidia"), folder_of("triton")
    wheels = [f"{nvidia}/cu{major}/include", f"{nvidia}/cuda_runtime/include"]
    toolkits = [os.environ.get(name, "") + "/include" for name in ("CUDA_HOME", "CUDA_PATH")]
    toolkits += [f"{sys.prefix}/include", *glob.glob(f"{sys.prefix}/targets/*/include"), "/usr/local/cuda/include"]
    last = f"{triton}/backends/nvidia/include"
    found = [f for f in wheels + toolkits if os.path.isfile(f"{f}/cuda_runtime_api.h")][:1]
    return [("-isystem", f) for f in found] + [("-idirafter", f) for f in [last] if os.path.isdir(f)]


def standard(cpp_extension):
    """Returns the compiler's option for the C++ standard of this PyTorch's extensions."""
    with open(cpp_extension.__file__, encoding="utf-8") as file:
        found = re.findall(r"common_cflags.*(-std=c\+\+\d+)", file.read())
    return found[-1] if found else "-std=c++17"


def loaded(name):
    """Returns the paths of loaded files that have this name, perhaps with a version at the end (NAME.0.33)."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line[line.index("/"):].rstrip("\n") for line in maps if "/" in line}
    wanted = re.compile(re.escape(name) + r"(\.\d+)*")
    return sorted(path for path in paths if wanted.fullmatch(os.path.basename(path)) and os.path.isfile(path))


TRY = "import ctypes, os, sys, torch; sys.exit(ctypes.CDLL(sys.argv[1], os.RTLD_LAZY).weir_torch_try())"


def try_out(library):
    """Tests in a separate process that the shim can throw an error.  With a wrong C++ library only that process crashes."""
    tried = run([sys.executable, "-c", TRY, library])
    if tried.returncode:
        fail(f"{library} does not work here: status {tried.returncode}", tried.stdout[:8000])


def is_newer(version):
    found = re.match(r"(\d+)\.(\d+)", version)
    return bool(found) and tuple(map(int, found.groups())) > interface.read_table()[0]


def compile_with(command):
    made = run(command)
    if made.returncode:
        errors = [line for line in made.stdout.split("\n") if "error" in line] or [f"status {made.returncode}"]
        fail(f"{command[0]} failed: {errors[0]}", made.stdout[:8000])


def check_newer(command, shim, library, lib):
    """Checks the shim on the device model, in a separate process without settings of weir.  Exits if the check fails."""
    program = f"{shim}.check"
    try:
        compile_with([*command, "-o", program, "-rdynamic", f"-L{lib}", "-lc10_cuda", "-lc10", "-ldl",
                      "-Wl,--allow-shlib-undefined", f"-Wl,-rpath,{lib}"])
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "PYTORCH_", "LD_P"))}
        done = run([program, shim, library], env={**plain, "WEIR_RUN_TORCH": "0"}, timeout=120)
    except subprocess.TimeoutExpired:
        fail("the self-check on the device model does not end within 120 s")
    finally:
        if os.path.exists(program):
            os.unlink(program)
    if done.returncode:
        last = done.stdout.strip().split("\n")[-1] or f"status {done.returncode}"
        fail(f"the self-check on the device model fails: {last}", done.stdout[:8000])


def main(output, library):
    try:
        import torch
        from torch.utils import cpp_extension
    except Exception as error:  # PyTorch may raise an error of any class
        fail(f"PyTorch cannot be imported: {error}".split("\n")[0])
    newer = is_newer(torch.version.__version__)
    if newer and (changed := interface.changes(os.path.join(os.path.dirname(torch.__file__), "include"))):
        fail(f"this PyTorch's allocator interface is not the one that weir knows: {changed}")
    here = os.path.dirname(os.path.realpath(__file__))
    compiler = cpp_extension.get_cxx_compiler()
    lib = os.path.join(os.path.dirname(torch.__file__), "lib")
    beside = f"{output}.{os.getpid()}"
    command = [*compiler.split(), standard(cpp_extension), "-O2"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += ["-I", here, "-I", os.path.join(here, "../../../include")]  # The second folder is for the source tree.
    for option in [("-isystem", path) for path in cpp_extension.include_paths()] + cuda_includes(torch.version.cuda):
        command += option
    # A program loads these libraries before the shim, so the shim contains no paths of libraries.  The C++ library is named
    # because some compilers would otherwise put a copy of the C++ library into the shim.
    libraries = [f"-L{lib}", "-Wl,--no-as-needed", "-lc10", "-lc10_cuda", *loaded("libstdc++.so.6")]
    try:
        compile_with([*command, "-fPIC", "-shared", os.path.join(here, "weir_torch.cpp"), "-o", beside, *libraries])
        try_out(beside)
        if newer:
            check_newer([*command, os.path.join(here, "weir_torch_check.cpp")], beside, library, lib)
        os.chmod(beside, 0o644)  # A program refuses a shim that other users may write to.
        os.replace(beside, output)
    except OSError as error:
        fail(f"no C++ compiler: {error}" if error.filename == compiler.split()[0] else str(error))
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except Exception as error:  # The user reads one line instead of a traceback.
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        fail(f"{kind}{error}".split("\n", maxsplit=1)[0])
