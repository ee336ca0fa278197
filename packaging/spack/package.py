# SPDX-License-Identifier: MIT
from spack.package import *

try:
    from spack_repo.builtin.build_systems.autotools import AutotoolsPackage
except ImportError:
    pass  # Spack before 1.0 has AutotoolsPackage in spack.package


class Weir(AutotoolsPackage):
    """GPU memory in stream order for CUDA programs: limits, growth, preallocation and statistics.  It opens the CUDA
    driver at run time, so it depends on no part of CUDA."""

    license("MIT")

    # Built in the unpacked tarball: spack dev-build weir@0.2.0.  For a release add url and sha256.
    version("0.2.0")

    variant("program", default=True, description="Build the program weir")
    variant("python", default=True, description="Build the package for Python and the adapters of frameworks")

    requires("platform=linux")
    depends_on("c", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("jansson@2.7:", when="+program")
    depends_on("zlib-api", when="+program")
    depends_on("zstd@1.4:", when="+program")
    depends_on("python@3.9:", type="run", when="+python")

    def configure_args(self):
        args = ["--with-cuda=no", "--disable-tests"]
        args += self.enable_or_disable("program")
        args += self.enable_or_disable("adapters", variant="python")
        return args

    def setup_run_environment(self, env):
        if self.spec.satisfies("+python"):
            env.prepend_path("PYTHONPATH", self.prefix.share.weir.python)
