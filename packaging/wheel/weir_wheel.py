# SPDX-License-Identifier: MIT
"""weir_wheel: the PEP 517 backend that builds weir's wheel from the unpacked tarball; `make wheel' runs it.

The wheel serves every Python 3 and every glibc from 2.28 on.  The compiler is zig's, which links for an older glibc
than this system's; the package ziglang has it.  The program has jansson, zlib and zstd in it.
Nothing is fetched: WHEEL_SOURCES names the folder with their sources, which fetch-sources fills.

    WHEEL_SOURCES=FOLDER   the sources (required)
    WHEEL_ARCH=NAME        x86_64 or aarch64; default: this machine's
    SOURCE_DATE_EPOCH      the time of the files; default: that of configure.ac

The package weir_cuda is the tree of an installation (bin, lib, share) and the modules.  The program finds all else from
where it lies.  Manual pages and completions go below the environment's share.
"""

import base64
import concurrent.futures
import glob
import gzip
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

PACKAGE = "weir_cuda"
GLIBC = "2.28"
PREFIX = "/opt/weir"
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
CFLAGS = ["-Os", "-g0", "-fPIC", "-fno-sanitize=all", "-ffunction-sections", "-fdata-sections"]
# An allocation or a free that the stream's cache serves passes these files alone, which are compiled for speed.
HIT = "api/request cache/cache_requests cache/page_map".split()
# The program has no copy of the library but loads libweir.so, which exports to it the internal functions that it calls.
# The version of these symbols names the release, so the program starts with the libweir.so of its own wheel alone.
SHARED = ["-fvisibility=protected"]
PROGRAM_CFLAGS = "$(AM_CFLAGS) $(JANSSON_CFLAGS) $(ZLIB_CFLAGS) $(ZSTD_CFLAGS)"
PROGRAM_LIBRARIES = (
    "lib/libweir-shown.la -Wl,lib/.libs/libweir.so -Wl,-rpath,'$$ORIGIN/../lib' "
    "$(JANSSON_LIBS) $(ZLIB_LIBS) $(ZSTD_LIBS) -lm"
)
# The program and the libraries in it need not be fast, and no exception of a caller passes through them.
SMALLEST = ["-Xclang", "-Oz", "-fno-unwind-tables"]
SMALL = [*SMALLEST, "-DHUF_FORCE_DECOMPRESS_X1=1", "-DZSTD_FORCE_DECOMPRESS_SEQUENCES_SHORT=1", "-DZSTD_NO_INLINE=1"]
COMPILER = """#!/bin/sh
# zig takes no library's file among the arguments for the linker.
for word; do
    shift
    case $word in -Wl,*/*.so) word=${{word#-Wl,}} ;; esac
    set -- "$@" "$word"
done
exec '{zig}' cc -target {target} "$@"
"""
LICENCES = {"jansson": "LICENSE", "zlib": "LICENSE", "libzstd": "LICENSE"}
JANSSON = {  # what its configure would find: each glibc has all of it
    "jansson_config.h": """#define JSON_INLINE inline
#define JSON_INTEGER_IS_LONG_LONG 1
#define JSON_HAVE_LOCALECONV 1
#define JSON_HAVE_ATOMIC_BUILTINS 1
#define JSON_HAVE_SYNC_BUILTINS 1
#define JSON_PARSER_MAX_DEPTH 2048
""",
    "jansson_private_config.h": "".join(
        f"#define HAVE_{name} 1\n"
        for name in "STDINT_H UNISTD_H FCNTL_H SYS_TIME_H SYS_STAT_H SYS_TYPES_H LOCALE_H OPEN READ CLOSE GETPID "
        "SCHED_H GETTIMEOFDAY STRTOLL SCHED_YIELD SETLOCALE LOCALECONV SYNC_BUILTINS ATOMIC_BUILTINS".split()
    )
    + "#define USE_URANDOM 1\n#define INITIAL_HASHTABLE_ORDER 3\n",
}


class Failure(Exception):
    """What is told without a trace of Python."""


def read(*path):
    with open(os.path.join(TOP, *path), encoding="utf-8") as file:
        return file.read()


def project():
    """The fields of pyproject.toml that are plain text; this Python may have no reader of it."""
    fields = dict(re.findall(r'^([a-z-]+) = "(.*)"$', read("pyproject.toml").partition("[project]")[2], re.M))
    fields["version"] = re.search(r"^AC_INIT\(\[weir\], \[([^]]*)\]", read("configure.ac"), re.M)[1]
    return fields


def run(command, log, **options):
    """Output goes to the log, whose end is shown if the command fails."""
    with open(log, "ab") as file:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False, **options)
    if done.returncode:
        with open(log, encoding="utf-8", errors="replace") as file:
            told = "".join(file.readlines()[-40:])
        raise Failure(f"{' '.join(command[:4])} ... failed with status {done.returncode}:\n{told}")


class Build:
    """One build in a folder of its own."""

    def __init__(self, work):
        self.work = work
        self.log = os.path.join(work, "log")
        self.arch = os.environ.get("WHEEL_ARCH") or platform.machine()
        if self.arch not in ("x86_64", "aarch64"):
            raise Failure(f"WHEEL_ARCH '{self.arch}': expected x86_64 or aarch64")
        try:
            import ziglang
        except ImportError:
            raise Failure(
                f"the compiler is missing: {sys.executable} has no package ziglang.  Install it by pip, or name the Python "
                "that has it: make wheel PYTHON=..."
            ) from None
        zig = os.path.join(os.path.dirname(ziglang.__file__), "zig")
        compiler = os.path.join(work, "cc")
        with open(compiler, "w", encoding="utf-8") as file:
            file.write(COMPILER.format(zig=zig, target=f"{self.arch}-linux-gnu.{GLIBC}"))
        os.chmod(compiler, 0o755)
        self.compiler = [compiler]
        self.archiver = [zig, "ar"]
        self.tools = [f"CC={compiler}", f"AR={zig} ar", f"RANLIB={zig} ranlib", "STRIP=true"]
        self.jobs = f"-j{os.cpu_count() or 1}"
        self.sources = {}

    # ---- what it has besides weir

    def unpack(self):
        folder = os.environ.get("WHEEL_SOURCES")
        if not folder:
            raise Failure(f"WHEEL_SOURCES is not set.  Get the sources first: {HERE}/fetch-sources FOLDER")
        for line in read("packaging", "wheel", "sources").splitlines():
            if line.startswith("#"):
                continue
            name, file, wanted = line.split()
            path = os.path.join(folder, file)
            if not os.path.exists(path):
                raise Failure(f"WHEEL_SOURCES: there is no {path}.  Get it: {HERE}/fetch-sources {folder}")
            with open(path, "rb") as opened:
                if hashlib.sha256(opened.read()).hexdigest() != wanted:
                    raise Failure(f"{path} has another SHA-256 than packaging/wheel/sources says: {wanted}")
            into = os.path.join(self.work, name)
            with tarfile.open(path) as tar:
                tar.extractall(into, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            self.sources[name] = os.path.join(into, os.listdir(into)[0])

    def archive(self, name, folders, flags):
        """A static library of all sources in these folders."""
        place = os.path.join(self.work, "lib")
        objects = os.path.join(self.work, f"{name}-objects")
        os.makedirs(objects)
        os.makedirs(place, exist_ok=True)
        files = [f for d in folders for f in sorted(glob.glob(os.path.join(d, "*.c")) + glob.glob(os.path.join(d, "*.S")))]
        made = [os.path.join(objects, f"{i}.o") for i in range(len(files))]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(
                pool.map(
                    lambda pair: run([*self.compiler, *CFLAGS, *SMALL, *flags, "-c", pair[0], "-o", pair[1]], self.log),
                    zip(files, made),
                )
            )
        run([*self.archiver, "rcs", os.path.join(place, f"lib{name}.a"), *made], self.log)

    def libraries(self):
        jansson, zlib, zstd = (self.sources[name] for name in ("jansson", "zlib", "libzstd"))
        for file, text in JANSSON.items():
            with open(os.path.join(jansson, "src", file), "w", encoding="utf-8") as header:
                header.write(text)
        source = os.path.join(jansson, "src")
        self.archive("jansson", [source], ["-DHAVE_CONFIG_H", f"-I{source}"])
        self.archive("z", [zlib], ["-DHAVE_UNISTD_H", "-DHAVE_HIDDEN", "-D_LARGEFILE64_SOURCE=1"])
        self.archive("zstd", [os.path.join(zstd, "lib", d) for d in ("common", "compress", "decompress")], [])

    # ---- weir

    def weir(self):
        """The root of an installation."""
        build, root = os.path.join(self.work, "build"), os.path.join(self.work, "root")
        jansson, zlib, zstd = (self.sources[name] for name in ("jansson", "zlib", "libzstd"))
        os.makedirs(build)
        command = [os.path.join(TOP, "configure"), "-q", f"--prefix={PREFIX}", f"--host={self.arch}-linux-gnu"]
        command += ["--with-cuda=no", "--disable-tests", "--disable-static", "--enable-preload", *self.tools]
        command += [f"CFLAGS={' '.join(CFLAGS + SHARED)}", "CPPFLAGS=-DNDEBUG"]
        command += ["LDFLAGS=-Wl,-s,--gc-sections,--hash-style=gnu,--undefined-version"]
        for name, include in (("JANSSON", f"{jansson}/src"), ("ZLIB", zlib), ("ZSTD", f"{zstd}/lib")):
            library = {"JANSSON": "jansson", "ZLIB": "z", "ZSTD": "zstd"}[name]
            command += [f"{name}_CFLAGS=-I{include}", f"{name}_LIBS={self.work}/lib/lib{library}.a"]
        run(command, self.log, cwd=build)
        fast = f"CFLAGS={' '.join([*CFLAGS, *SHARED, '-O2'])}"
        run(["make", "-s", self.jobs, fast, *(f"lib/{name}.lo" for name in HIT)], self.log, cwd=build)
        make = ["make", "-s", self.jobs, f"weir_CFLAGS={PROGRAM_CFLAGS} {' '.join(SMALLEST)}"]
        run(make, self.log, cwd=build)
        symbols = self.symbols(build)
        os.remove(os.path.join(build, "weir"))
        make += [f"libweir_map={symbols}", f"weir_LDADD={PROGRAM_LIBRARIES}"]
        run([*make, "lib/libweir.la"], self.log, cwd=build)  # of which weir_LDADD makes no dependency
        run(make, self.log, cwd=build)
        run([*make, "install", f"DESTDIR={root}"], self.log, cwd=build)
        return root + PREFIX

    def symbols(self, build):
        """Writes the symbol map of libweir.so, with all internal names that are in the program's object files."""
        names = set()
        objects = glob.glob(os.path.join(build, "cli", "**", "*.o"), recursive=True)
        for path in [*objects, os.path.join(build, "lib", ".libs", "libweir-shown.a")]:
            with open(path, "rb") as file:
                names.update(re.findall(rb"\bweir__\w+", file.read()))
        path = os.path.join(self.work, "libweir.map")
        with open(path, "w", encoding="utf-8") as file:
            file.write(read("lib", "libweir.map") + f"\nWEIR_PROGRAM_{project()['version']} {{\n")
            file.write("".join(f"    {name.decode()};\n" for name in sorted(names)) + "};\n")
        return path

    def build(self):
        """What goes into the wheel: (name, path or text, whether it is a program)."""
        self.unpack()
        self.libraries()
        root = self.weir()
        fields = project()
        shared = f"{PACKAGE}-{fields['version']}.data/data/share"
        line = f"{fields['name']} {fields['version']} ({tag(self.arch)})\n"
        entries = [(f"{PACKAGE}/share/weir/wheel", line, False), (f"{PACKAGE}/bin/weir", f"{root}/bin/weir", True)]
        entries.append((f"{PACKAGE}/lib/libweir.so.1", os.path.realpath(f"{root}/lib/libweir.so.1"), True))
        for path in glob.glob(f"{root}/lib/weir/*.so"):
            entries.append((f"{PACKAGE}/lib/weir/{os.path.basename(path)}", path, True))
        for folder, into in (
            ("share/weir/python/weir_cuda", PACKAGE),
            ("share/weir/traces", f"{PACKAGE}/share/weir/traces"),
            ("share/weir/torch", f"{PACKAGE}/share/weir/torch"),
            ("share/man", f"{shared}/man"),
            ("share/bash-completion", f"{shared}/bash-completion"),
            ("share/zsh", f"{shared}/zsh"),
            ("share/fish", f"{shared}/fish"),
        ):
            for above, _, names in os.walk(os.path.join(root, folder)):
                for name in names:
                    path = os.path.join(above, name)
                    if is_alias(path):
                        continue
                    entries.append((f"{into}/{os.path.relpath(path, os.path.join(root, folder))}", path, False))
        return entries + self.metadata(fields)

    def metadata(self, fields):
        info = f"{PACKAGE}-{fields['version']}.dist-info"
        licences = [("COPYING", os.path.join(TOP, "COPYING"))]
        licences += [(f"COPYING.{name}", os.path.join(self.sources[name], file)) for name, file in LICENCES.items()]
        entries = [(f"{info}/licenses/{name}", path, False) for name, path in licences]
        entries.append((f"{info}/METADATA", metadata_text(fields, [name for name, _ in licences]), False))
        wheel = f"Wheel-Version: 1.0\nGenerator: weir_wheel\nRoot-Is-Purelib: false\nTag: py3-none-{tag(self.arch)}\n"
        entries.append((f"{info}/WHEEL", wheel, False))
        scripts = f"[console_scripts]\nweir = {PACKAGE}._program:main\n"
        return entries + [(f"{info}/entry_points.txt", scripts, False)]


def is_alias(path):
    """Returns whether the file is a page of the manual that only names another one: libweir(3) lists all functions."""
    with open(path, "rb") as file:
        return file.read(4) == b".so "


def tag(arch):
    return f"manylinux_{GLIBC.replace('.', '_')}_{arch}"


def metadata_text(fields, licences):
    lines = ["Metadata-Version: 2.4", f"Name: {fields['name']}", f"Version: {fields['version']}"]
    lines += [f"Summary: {fields['description']}", f"Requires-Python: {fields['requires-python']}"]
    lines += [f"License-Expression: {fields['license']}", *(f"License-File: {name}" for name in licences)]
    lines += [f"Classifier: {text}" for text in ("Environment :: GPU :: NVIDIA CUDA", "Operating System :: POSIX :: Linux",
                                                 "Programming Language :: Python :: 3", "Typing :: Typed")]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", read("packaging", "wheel", "description.md")])


def moment():
    return int(os.environ.get("SOURCE_DATE_EPOCH") or os.stat(os.path.join(TOP, "configure.ac")).st_mtime)


def write(path, entries, info):
    """The same entries and time make the same file."""
    record = io.StringIO()
    date = time.gmtime(max(moment(), 315619200))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        # What says what the rest is comes last.
        for name, source, is_program in sorted(entries, key=lambda entry: (entry[0].startswith(info), entry[0])):
            if "\n" in source:
                data = source.encode()
            else:
                with open(source, "rb") as file:
                    data = file.read()
            sum_ = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.write(f"{name},sha256={sum_},{len(data)}\n")
            put(wheel, name, data, date, is_program)
        record.write(f"{info}/RECORD,,\n")
        put(wheel, f"{info}/RECORD", record.getvalue().encode(), date, False)


def put(wheel, name, data, date, is_program):
    entry = zipfile.ZipInfo(name, date)
    entry.external_attr = (0o100755 if is_program else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, data)


# ---- PEP 517


def get_requires_for_build_wheel(config_settings=None):
    return ["ziglang"]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if not os.path.exists(os.path.join(TOP, "configure")):
        raise Failure(f"{TOP} has no configure: build the wheel from the tarball, or run autoreconf -i first")
    os.makedirs(wheel_directory, exist_ok=True)
    work = tempfile.mkdtemp(prefix="weir-wheel-")
    try:
        build = Build(work)
        entries = build.build()
        version = project()["version"]
        name = f"{PACKAGE}-{version}-py3-none-{tag(build.arch)}.whl"
        write(os.path.join(wheel_directory, name), entries, f"{PACKAGE}-{version}.dist-info")
        return name
    finally:
        shutil.rmtree(work)


def build_sdist(sdist_directory, config_settings=None):
    """The unpacked tarball again, with the metadata; the same files and time make the same file."""
    if os.path.exists(os.path.join(TOP, ".git")) or not os.path.exists(os.path.join(TOP, "configure")):
        raise Failure(f"{TOP} is no unpacked tarball: make dist makes one")
    fields = project()
    folder = f"{PACKAGE}-{fields['version']}"
    name = f"{folder}.tar.gz"
    entry = tarfile.TarInfo(f"{folder}/PKG-INFO")
    data = metadata_text(fields, ["COPYING"]).encode()
    entry.size, entry.mtime = len(data), moment()
    with open(os.path.join(sdist_directory, name), "wb") as file, gzip.GzipFile("", "wb", 9, file, moment()) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(TOP, folder, filter=from_the_tarball)
            tar.addfile(entry, io.BytesIO(data))
    return name


def from_the_tarball(entry):
    """Without what importing this leaves there, and without this machine's users."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return None if os.path.basename(entry.name) == "__pycache__" else entry


if __name__ == "__main__":  # OUTPUT-FOLDER
    try:
        print(build_wheel(sys.argv[1]))
    except Failure as error:
        sys.exit(f"weir_wheel: {error}")
