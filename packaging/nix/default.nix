# nix-build packaging/nix
{ pkgs ? import <nixpkgs> { } }:

pkgs.stdenv.mkDerivation {
  pname = "weir";
  version = "0.2.0";
  src = ../..;

  # autoAddDriverRunpath: programs and libraries of this package find the driver of NixOS in /run/opengl-driver/lib.
  nativeBuildInputs = [ pkgs.autoAddDriverRunpath pkgs.autoreconfHook pkgs.pkg-config ];
  buildInputs = [ pkgs.jansson pkgs.zlib pkgs.zstd ];
  configureFlags = [ "--with-cuda=no" "--disable-tests" "--disable-static" ];

  postInstall = ''
    mkdir -p $out/${pkgs.python3.sitePackages}
    mv $out/share/weir/python/* $out/${pkgs.python3.sitePackages}/
    rm -f $out/lib/*.la $out/lib/weir/*.la
  '';

  meta = {
    description = "GPU memory in stream order for CUDA programs, with limits, growth and statistics";
    license = pkgs.lib.licenses.mit;
    platforms = pkgs.lib.platforms.linux;
    mainProgram = "weir";
  };
}
