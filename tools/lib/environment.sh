# shellcheck shell=bash
#
# Sets a checkout up and prepares the shell to run things in it. Sourced by tools/demo and tools/test, which
# call `prepare_environment demo` or `prepare_environment dev`, and by tools/jar. Afterwards:
#
#   $root, $venv                            the checkout and its own virtual environment
#   JAVA_HOME                               a Java runtime that Spark can use
#   PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON   the environment's python
#
# Everything this file writes is under .venv, so `rm -rf .venv` is a complete reset. Needs bash and what every
# Debian system has (coreutils, findutils, awk, flock); Python is looked for, not assumed.

root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
venv=$root/.venv
stamp=$venv/setup.stamp # what was set up; present only while the environment is complete
lock=$venv/setup.lock
log=$venv/setup.log

java_minimum=17 # what Spark 4 runs on
java_packages=(openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless)
jdk_packages=(openjdk-17-jdk-headless openjdk-21-jdk-headless default-jdk-headless)
manager_jar=$root/sortshuffle/spark/manager/sortshuffle-manager.jar # tools/jar makes it
python_minimum_minor=10 # requires-python in pyproject.toml
python_names=(python3 python3.13 python3.12 python3.11 python3.10)

prepare_environment() {
    local extra=$1
    leave_foreign_installations
    if ! is_set_up "$extra" || ! find_java; then
        set_up_alone "$extra"
    fi
    say "Using Java $java_version at $java_home"
    export JAVA_HOME=$java_home
    export PYSPARK_PYTHON=$venv/bin/python
    export PYSPARK_DRIVER_PYTHON=$venv/bin/python
}

# A machine that already has a Spark usually says so in these variables, and they win over what is installed in
# .venv: SPARK_HOME makes PySpark start the jars of that other Spark (the Python and JVM halves then disagree, with
# errors that name neither), SPARK_CONF_DIR brings its cluster's settings, and PYTHONPATH (commonly
# $SPARK_HOME/python) or PYTHONHOME put other modules before ours.
leave_foreign_installations() {
    unset SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYTHONHOME
}

# --- messages -------------------------------------------------------------------------------------------------

# To stderr: the output of the demo and the tests stays clean to pipe.
say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "$@"
    exit 1
}

# stdin is closed off so that no tool ever waits for an answer that nobody will give.
logged() {
    printf '\n$ %s\n' "$*" >>"$log"
    "$@" >>"$log" 2>&1 </dev/null
}

show_log() {
    say "The end of the log:"
    tail -n 20 -- "$log" | sed 's/^/    /' >&2
    say "The whole log: $log"
}

# --- is there anything to do? ---------------------------------------------------------------------------------

# The stamp's text. Apart from the dependencies it names
#  - the checkout's path, because scripts in .venv and the editable install hold it: a copied or moved checkout
#    would otherwise run the code of the original;
#  - Python's minor version, because a system upgrade can put another one behind the same .venv/bin/python.
#    (Not the patch version: packages stay good across it, and a security update should not cost a download.)
stamp_for() {
    local extra=$1
    stamp_base
    printf 'pyproject %s\nextra %s\n' "$(pyproject_hash)" "$extra"
}

stamp_base() {
    local version
    version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=none
    printf 'checkout %s\npython %s\n' "$root" "$version"
}

# The parts of pyproject.toml that decide what gets installed. The settings of ruff, mypy and pytest are left out:
# editing them should not start pip, which needs the network.
pyproject_hash() {
    awk '/^\[/ { counts = !/^\[+tool\./ || /^\[+tool\.setuptools/ } counts' "$root/pyproject.toml" |
        sha256sum | cut -d ' ' -f 1
}

is_set_up() {
    local extra=$1 text
    [[ -f $stamp ]] || return 1
    text=$(<"$stamp")
    [[ $text == "$(stamp_for dev)" ]] && return # dev includes demo
    [[ $extra == demo && $text == "$(stamp_for demo)" ]]
}

# Complete, and made by this Python for this checkout: good to add packages to. Anything else gets rebuilt.
is_complete() {
    [[ -f $stamp ]] && [[ $(head -n 2 -- "$stamp") == "$(stamp_base)" ]]
}

# --- set-up ---------------------------------------------------------------------------------------------------

# One set-up at a time per checkout. Children inherit the descriptor: if this shell is killed while its pip lives on,
# the next command waits for that pip before it clears up.
set_up_alone() {
    local extra=$1
    mkdir -p -- "$venv" || die "Cannot create $venv. Run this from a checkout that you may write to."
    exec 9>>"$lock" || die "Cannot write to $lock. Run this from a checkout that you may write to."
    if ! flock --nonblock 9; then
        say "Waiting for another set-up of this checkout to finish"
        flock 9
    fi
    # Asked again: the one waited for may have done it all.
    if ! is_set_up "$extra" || ! find_java; then
        : >"$log"
        provide_prerequisites
        is_set_up "$extra" || set_up_packages "$extra"
    fi
    exec 9>&-
}

set_up_packages() {
    local extra=$1 previous='' before wanted
    if is_complete; then
        previous=$(<"$stamp")
        if [[ $previous == *"pyproject $(pyproject_hash)"* ]]; then
            say "Adding what the tests need to .venv (about 30 MB to download)"
        else
            say "Updating .venv, because pyproject.toml has changed"
        fi
    else
        create_venv
        say "Installing sortshuffle and its dependencies: about 560 MB to download, a minute or two"
        say "(in .venv, 1 GB of disk when done, 3 GB while PySpark is being unpacked)"
    fi

    # From here until pip has finished there is no stamp, so whatever interrupts it, the next run starts afresh.
    before=$(installed_state)
    wanted=$(stamp_for "$extra") # now, of the pyproject.toml that pip is about to read
    rm -f -- "$stamp"
    if ! pip_install "$extra"; then
        # pip downloads everything before it changes anything, so without a network an environment that was good
        # still is. Keep it then: a failed tools/test must not take tools/demo away.
        if [[ -n $previous && $before == "$(installed_state)" ]]; then
            write_stamp "$previous"
        fi
        say "pip could not install sortshuffle's dependencies."
        show_log
        exit 1
    fi
    write_stamp "$wanted"
}

create_venv() {
    # Behind a link there may be the environment of another checkout, which would be emptied.
    if [[ -L $venv ]]; then
        die "$venv is a link. Remove it: each checkout sets up an environment of its own."
    fi
    if [[ -e $venv/bin || -e $venv/pyvenv.cfg ]]; then
        say "Removing what is in .venv: not a complete set-up of this checkout with this Python"
    fi
    # The stamp goes first, so that it never stands beside a half-removed environment. The lock (held) and the log (in
    # use) stay.
    rm -f -- "$stamp"
    find "$venv/" -mindepth 1 -maxdepth 1 ! -name "${lock##*/}" ! -name "${log##*/}" -exec rm -rf -- {} +
    say "Creating .venv with Python $python_version"
    if ! logged "$python" -m venv "$venv"; then
        say "$python could not create a virtual environment."
        show_log
        exit 1
    fi
}

pip_install() {
    local extra=$1 status=0
    # PySpark comes as a source archive whose build takes 2 GB. On many systems /tmp is in memory and too small for
    # that; the disk of the checkout has to have room for the result anyway.
    mkdir -p -- "$venv/tmp"
    (
        cd -- "$root" || exit
        export TMPDIR=$venv/tmp
        logged "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
            --editable ".[$extra]"
    ) || status=$?
    rm -rf -- "$venv/tmp"
    return "$status"
}

# Changes whenever pip installs or removes something.
installed_state() {
    stat -c '%n %y' -- "$venv/bin" "$venv"/lib/python*/site-packages
}

# By rename, so that a stamp is there whole or not at all.
write_stamp() {
    printf '%s\n' "$1" >"$stamp.new"
    mv -f -- "$stamp.new" "$stamp"
}

# --- what the system has to provide ---------------------------------------------------------------------------

# Before any download, and everything that is missing in one message.
provide_prerequisites() {
    local missing=() packages=()
    if ! is_complete; then
        find_python || die_without_python
        if [[ $python_has_pip == no ]] && ! apt_install_pip; then
            missing+=("pip for the virtual environments of $python (Python $python_version)")
            packages+=("$(venv_package)")
        fi
    fi
    if ! find_java && ! apt_install_java; then
        missing+=("a Java runtime, version $java_minimum or later${java_too_old:+ (too old: $java_too_old)}")
        packages+=("$(java_package)")
    fi
    ((${#missing[@]} == 0)) && return

    say "This machine lacks:"
    printf '  - %s\n' "${missing[@]}" >&2
    say "On Debian or Ubuntu, install with"
    say "  sudo apt-get update && sudo apt-get install ${packages[*]}"
    if [[ ${packages[*]} == *jre* ]]; then
        say "or set JAVA_HOME to a Java $java_minimum or later that is somewhere else."
    fi
    die "Then run this command again."
}

may_use_apt() {
    ((EUID == 0)) && command -v apt-get >/dev/null
}

# By the output: for a name that other packages only mention, apt-cache prints nothing and still succeeds.
apt_has() {
    [[ -n $(apt-cache show "$1" 2>/dev/null) ]]
}

apt_updated=no

apt_install() {
    local package=$1
    if [[ $apt_updated == no ]]; then
        say "Updating the package lists (apt-get update)"
        # One unreachable third-party source fails this although the install below may work; that one decides.
        logged apt-get update || say "apt-get update reported errors; going on with the lists there are"
        apt_updated=yes
    fi
    # Asking first keeps a name that this release does not have from looking like a failure.
    apt_has "$package" || return
    say "Installing $package"
    if ! logged env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"; then
        say "apt-get could not install $package."
        show_log
        return 1
    fi
}

# Sets python, python_version and python_has_pip. The first Python that is new enough and can make environments with
# pip in them; failing that the first that is new enough (Debian has the pip part in a package of its own).
find_python() {
    local name path version has_pip executable
    python='' python_version='' python_has_pip=no python_too_old=''
    for name in "${python_names[@]}"; do
        # All of that name on the PATH, because the first may be a shim (pyenv) for a version that is not installed,
        # or .venv's own, which is about to be removed.
        while IFS= read -r path; do
            [[ $path != "$venv"/* ]] || continue
            read -r version has_pip executable < <(probe_python "$path") || continue
            if ! is_new_enough "$version"; then
                python_too_old=${python_too_old:-Python $version at $executable}
            elif [[ -z $python || $has_pip == yes ]]; then
                python=$executable python_version=$version python_has_pip=$has_pip
                [[ $has_pip == no ]] || return 0
            fi
        done < <(type -aP "$name")
    done
    [[ -n $python ]]
}

probe_python() {
    "$1" -c 'import sys, importlib.util as u
print("%d.%d.%d" % sys.version_info[:3], "yes" if u.find_spec("ensurepip") else "no", sys.executable)' \
        2>/dev/null </dev/null
}

is_new_enough() {
    local major minor
    IFS=. read -r major minor _ <<<"$1"
    ((major > 3 || (major == 3 && minor >= python_minimum_minor)))
}

die_without_python() {
    if [[ -n $python_too_old ]]; then
        say "sortshuffle needs Python 3.$python_minimum_minor or later; the only one here is $python_too_old."
    else
        say "sortshuffle needs Python 3.$python_minimum_minor or later; there is no python3 on the PATH."
    fi
    say "Looked for: ${python_names[*]}."
    die "On Debian 12 or Ubuntu 22.04 and later: sudo apt-get update && sudo apt-get install python3 python3-venv"
}

venv_package() {
    printf 'python%s-venv' "${python_version%.*}"
}

apt_install_pip() {
    may_use_apt || return
    apt_install "$(venv_package)" || apt_install python3-venv || return
    find_python && [[ $python_has_pip == yes ]]
}

# Sets java_home and java_version, or java_too_old. The last place is where Debian's packages are: there may be a new
# one there although JAVA_HOME or the PATH name an old one.
find_java() {
    local path spec
    java_home='' java_version='' java_too_old=''
    while IFS= read -r path; do
        [[ -x $path ]] || continue
        probe_java "$path" || continue
        if ((spec >= java_minimum)); then
            return 0
        fi
        java_too_old=${java_too_old:-Java $java_version at $java_home}
    done < <(
        [[ -z ${JAVA_HOME:-} ]] || printf '%s\n' "$JAVA_HOME/bin/java"
        type -aP java || true
        printf '%s\n' /usr/lib/jvm/*/bin/java
    )
    return 1
}

# Java is asked where it lives, because what is on the PATH may be a link or a wrapper, and Spark wants JAVA_HOME.
# Sets java_home, java_version and the caller's spec (17; Java 8 calls itself 1.8, which counts as 1).
probe_java() {
    local key value
    java_home='' java_version='' spec=0
    while IFS='=' read -r key value; do
        case ${key//[[:space:]]/} in
            java.home) java_home=${value# } ;;
            java.version) java_version=${value# } ;;
            java.specification.version) spec=${value# } spec=${spec%%.*} ;;
        esac
    done < <("$1" -XshowSettings:properties -version 2>&1 </dev/null)
    [[ -n $java_home && $spec =~ ^[0-9]+$ ]]
}

# The first name that this release's lists have; without lists the last, which every release has.
java_package() {
    local package
    for package in "${java_packages[@]}"; do
        ! apt_has "$package" || break
    done
    printf '%s' "$package"
}

apt_install_java() {
    apt_install_first_of find_java "${java_packages[@]}"
}

# The first package after which what is looked for is there.
apt_install_first_of() {
    local finds=$1 package
    shift
    may_use_apt || return
    for package in "$@"; do
        if apt_install "$package" && "$finds"; then
            return 0
        fi
    done
    return 1
}

# --- a JDK, which builds the jar of the shuffle manager; Spark itself runs without ----------------------------

# Sets jdk: JAVA_HOME's, the PATH's, or one where Debian's packages are. Its runtime is as new as the compiler.
find_jdk() {
    local path spec java_home java_version
    jdk=''
    while IFS= read -r path; do
        [[ -x $path && -x ${path%javac}jar ]] || continue
        path=$(readlink -f -- "$path")
        probe_java "${path%javac}java" || continue
        if ((spec >= java_minimum)); then
            jdk=${path%/bin/javac}
            return 0
        fi
    done < <(
        [[ -z ${JAVA_HOME:-} ]] || printf '%s\n' "$JAVA_HOME/bin/javac"
        type -aP javac || true
        printf '%s\n' /usr/lib/jvm/*/bin/javac
    )
    return 1
}

apt_install_jdk() {
    apt_install_first_of find_jdk "${jdk_packages[@]}"
}
