# nix-build packaging/nix
{ pkgs ? import <nixpkgs> { } }:

pkgs.stdenv.mkDerivation {
  pname = "weir";
  version = "0.2.0";
  src = ../..;

  nativeBuildInputs = [ pkgs.autoreconfHook pkgs.pkg-config pkgs.makeWrapper ];
  buildInputs = [ pkgs.jansson pkgs.zlib pkgs.zstd ];
  configureFlags = [ "--with-cuda=no" "--disable-tests" "--disable-static" ];

  # The driver's library is the system's.
  postInstall = ''
    mkdir -p $out/${pkgs.python3.sitePackages}
    mv $out/share/weir/python/* $out/${pkgs.python3.sitePackages}/
    rm -f $out/lib/*.la $out/lib/weir/*.la
    wrapProgram $out/bin/weir --suffix LD_LIBRARY_PATH : /run/opengl-driver/lib
  '';

  meta = {
    description = "GPU memory in stream order for CUDA programs, with limits, growth and statistics";
    license = pkgs.lib.licenses.mit;
    platforms = pkgs.lib.platforms.linux;
    mainProgram = "weir";
  };
}
