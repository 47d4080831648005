#!/bin/sh
# install.sh BUILD DEST PREFIX - puts programs, man pages, completion, troubleshooting.md, the list and
# the demo models into DEST/PREFIX, and the service's unit if there is a server. `make install` and
# `make deb` use it. Man pages are made from --help, which needs python3.
set -eu
build=$1 dest=$2 prefix=$3
to=$dest$prefix
share=$to/share
zsh=$share/zsh/site-functions
[ "$prefix" != /usr ] || zsh=$share/zsh/vendor-completions

install -d "$to/bin" "$share/moe" "$share/doc/moe" "$share/man/man1" "$share/bash-completion/completions" "$zsh"
for p in moe-run moe-bench moe-quant moe-serve; do
    [ -e "$build/$p" ] || continue
    install -m 755 "$build/$p" "$to/bin"
    [ $p = moe-run ] || ln -sf moe-run "$share/bash-completion/completions/$p"
done
if command -v python3 >/dev/null; then
    umask 022
    python3 tools/gen_man.py "$build" "$share/man/man1"
else
    echo "install.sh: no python3: without man pages" >&2
fi
install -m 644 docs/troubleshooting.md "$share/doc/moe"
install -m 644 packaging/moe.bash "$share/bash-completion/completions/moe-run"
install -m 644 packaging/_moe "$zsh"
install -m 644 models.txt tests/models/demo-qwen3next-mtp.gguf tests/models/demo-gptoss-MXFP4.gguf "$share/moe"
if [ -e "$build/moe-serve" ]; then
    install -d "$to/lib/systemd/system"
    sed "s|@BIN@|$prefix/bin|" packaging/moe-serve.service >"$to/lib/systemd/system/moe-serve.service"
    chmod 644 "$to/lib/systemd/system/moe-serve.service"
fi
