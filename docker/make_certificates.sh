#!/bin/sh
# Makes what an edge fleet needs to trust each other: a certificate authority of your
# own, the server's certificate, and a key pair for each device.
#
#   docker/make_certificates.sh [--host NAME_OR_ADDRESS]... [DEVICE]...
#
# Without devices it makes those of the compose files: device-0 to device-4. It makes
# what is missing and leaves alone what is there, so run it again to add a device. To
# replace something, delete it first. The server's certificate is made again, for its
# hosts of before as well, when it lacks one that you name, has less than 30 days to go,
# or is none of the key.
#
# The folder is docker/certificates, or EDGE_CERTIFICATES, an absolute path in the
# environment or in docker/.env, where Compose reads it, too:
#
#   ca.crt ca.key      the authority; ca.key signs servers: keep it off the server
#   server/            what the server's container sees
#   devices/NAME/      what the device NAME sees: take it there, and nowhere else
#   public/NAME.pub    what the server registers: the keys that it lets in
set -eu
umask 077

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
image_user=10001 # the images' user, who must be able to read the keys
days_ca=3650
days_server=730
seconds_left=2592000

main() {
    hosts="superlink control localhost 127.0.0.1 ::1"
    while [ $# -gt 0 ] && [ "$1" = --host ]; do
        [ $# -gt 1 ] || fail "--host needs a name or an address"
        case $2 in
        "" | *[!A-Za-z0-9.:-]* | -* | .*)
            fail "'$2' is no host: letters, digits, '-', '.', ':'"
            ;;
        esac
        hosts="$hosts $2"
        shift 2
    done
    [ $# -gt 0 ] || set -- device-0 device-1 device-2 device-3 device-4
    for name in "$@"; do
        case $name in
        "" | -* | *[!A-Za-z0-9_.-]* | .*)
            fail "'$name' is no name for a device: letters, digits, '-', '_', '.'"
            ;;
        esac
    done
    out=${EDGE_CERTIFICATES-$(from_env_file EDGE_CERTIFICATES)}
    case $out in
    *:*) fail "EDGE_CERTIFICATES='$out' has a ':', where Compose ends a path: take another" ;;
    esac
    [ -n "$out" ] || out=$here/certificates
    case $out in
    /*) ;;
    *) fail "EDGE_CERTIFICATES='$out' must be an absolute path: Compose would look for it in $here" ;;
    esac
    for program in openssl ssh-keygen; do
        command -v $program >/dev/null || fail "$program is needed: install it"
    done
    # ssh-keygen makes no keys without one.
    id -un >/dev/null 2>&1 || fail "the user $(id -u) has no name: be one that has (/etc/passwd)"

    mkdir -p "$out/server" "$out/devices" "$out/public" || not_yours "$out"
    for folder in "$out" "$out/server" "$out/devices" "$out/public"; do
        [ -w "$folder" ] || not_yours "$folder"
    done
    alone
    authority
    server
    for name in "$@"; do device "$name"; done
    readable_for_containers
}

# As Compose reads it: the last line counts, without quotes, or without a comment.
from_env_file() {
    [ -f "$here/.env" ] || return 0
    [ -r "$here/.env" ] || fail "$here/.env cannot be read: be the user who made it"
    value=$(sed -n "s/$(line_of "$1")//p" "$here/.env" | tail -n 1 |
        sed -e 's/^"\([^"]*\)".*/\1/; t' -e "s/^'\([^']*\)'.*/\1/; t" \
            -e 's/[[:space:]]#.*//; s/[[:space:]]*$//')
    case $value in
    *[\$\\]*) fail "$1='$value' of $here/.env: write the path without \$ and \\" ;;
    esac
    printf '%s\n' "$value"
}

# How a line of docker/.env begins, as Compose reads it: a basic regular expression.
line_of() {
    blank='[[:space:]]'
    printf '%s\n' "^$blank*\(export$blank$blank*\)\{0,1\}$1$blank*[=:]$blank*"
}

# What a fleet mounts and is missing when it starts Docker makes: as root, as a folder.
not_yours() {
    fail "$1 is not yours to write: if Docker made it, as root, delete $out"
}

# Two at once would mix up keys and certificates. The link names who works here, so one
# that was killed is not waited for, unless another process has its number by now.
alone() {
    making=$out/.making
    if ! ln -s $$ "$making" 2>/dev/null; then
        other=$(readlink "$making") || fail "$making cannot be made: is the disk full?"
        ! is_there "$other" ||
            fail "another one makes certificates in $out (process $other): run this again after it, or delete $making if that is something else"
        rm -f "$making"
        ln -s $$ "$making"
    fi
    trap 'rm -f "$making"' EXIT
    trap 'exit 1' HUP INT TERM
}

# Whoever's process it is: of another user's it is said that we may not signal it.
is_there() {
    said=$(LC_ALL=C kill -0 "$1" 2>&1) && return
    case $said in
    *[Nn]"o such process"*) return 1 ;;
    esac
}

authority() {
    if [ -d "$out/ca.crt" ]; then
        rmdir "$out/ca.crt" 2>/dev/null || fail "$out/ca.crt is a folder: delete it"
    fi
    [ -s "$out/ca.crt" ] && return
    [ ! -s "$out/ca.key" ] || fail "$out has a ca.key without its ca.crt: delete both"
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes \
        -sha384 -days $days_ca -subj "/CN=flwr-asyncdrop edge fleet" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout "$out/ca.key" -out "$out/ca.crt"
    chmod 644 "$out/ca.crt"
    say "ca.crt: a new authority, valid for $days_ca days"
}

server() {
    crt=$out/server/server.crt
    key=$out/server/server.key
    # The container sees its own copy.
    cp "$out/ca.crt" "$out/server/ca.crt"
    chmod 644 "$out/server/ca.crt"
    if [ -s "$crt" ] && good_for_hosts "$crt" && of_key "$crt" "$key"; then return; fi
    for host in $(hosts_of "$crt"); do
        case " $hosts " in
        *" $host "*) ;;
        *) hosts="$hosts $host" ;;
        esac
    done
    [ -s "$out/ca.key" ] || fail "a certificate for $hosts needs $out/ca.key"
    quietly openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes \
        -subj "/CN=superlink" -keyout "$out/server/new.key" \
        -out "$out/server/server.csr"
    {
        echo "basicConstraints=critical,CA:FALSE"
        echo "keyUsage=critical,digitalSignature"
        echo "extendedKeyUsage=serverAuth"
        echo "subjectKeyIdentifier=hash"
        echo "authorityKeyIdentifier=keyid"
        echo "subjectAltName=$(alternative_names)"
    } >"$out/server/server.cnf"
    quietly openssl x509 -req -in "$out/server/server.csr" -sha384 -days $days_server \
        -CA "$out/ca.crt" -CAkey "$out/ca.key" -CAcreateserial \
        -extfile "$out/server/server.cnf" -out "$out/server/new.crt"
    # Both are there: a key without its certificate would serve nobody.
    mv "$out/server/new.key" "$key"
    mv "$out/server/new.crt" "$crt"
    rm -f "$out/server/server.csr" "$out/server/server.cnf"
    chmod 644 "$crt"
    say "server/: a new certificate for $hosts, valid for $days_server days"
}

good_for_hosts() {
    openssl verify -CAfile "$out/ca.crt" "$1" >/dev/null 2>&1 || return 1
    openssl x509 -in "$1" -noout -checkend $seconds_left >/dev/null || return 1
    for host in $hosts; do
        if is_address "$host"; then check=-checkip; else check=-checkhost; fi
        openssl x509 -in "$1" -noout $check "$host" | grep -q "does match" || return 1
    done
}

# Those that a certificate is for, if it is there; OpenSSL writes ::1 in full.
hosts_of() {
    openssl x509 -in "$1" -noout -text 2>/dev/null |
        sed -n '/Subject Alternative Name/{n;p;}' | tr ',' '\n' |
        sed -n -e '/:0:0:0:0:0:0:0:1$/d' -e 's/^ *DNS:\([A-Za-z0-9.-]*\)$/\1/p' \
            -e 's/^ *IP Address:\([0-9A-Fa-f.:]*\)$/\1/p'
}

# A key that is missing, or whose certificate did not come any more, is none of it.
of_key() {
    public=$(openssl pkey -in "$2" -pubout 2>/dev/null) || return 1
    [ "$public" = "$(openssl x509 -in "$1" -noout -pubkey)" ]
}

alternative_names() {
    separator=
    for host in $hosts; do
        if is_address "$host"; then kind=IP; else kind=DNS; fi
        printf '%s%s:%s' "$separator" $kind "$host"
        separator=,
    done
}

is_address() {
    case $1 in
    *:*) true ;;
    *[!0-9.]*) false ;;
    esac
}

device() {
    folder=$out/devices/$1
    if [ ! -s "$folder/key" ]; then
        mkdir -p "$folder"
        # The curve that Flower's authentication of SuperNodes takes.
        rm -f "$folder/new" "$folder/new.pub"
        ssh-keygen -q -t ecdsa -b 384 -N "" -C "$1" -f "$folder/new"
        # The key comes last: with it there, nothing is made again.
        mv "$folder/new.pub" "$out/public/$1.pub"
        mv "$folder/new" "$folder/key"
        say "devices/$1/: a new key pair"
    fi
    cp "$out/ca.crt" "$folder/ca.crt"
    chmod 644 "$folder/ca.crt"
    # Without it the device is shut out, and stays so.
    [ ! -e "$out/public/$1.pub" ] || chmod 644 "$out/public/$1.pub"
}

# A container sees files with the numbers of their owners. Yours runs as you: compose
# reads the numbers from docker/.env. Root's files are given to whom they name, or to
# the images' user.
readable_for_containers() {
    if [ "$(id -u)" = 0 ]; then
        user=${EDGE_UID-$(from_env_file EDGE_UID)}
        group=${EDGE_GID-$(from_env_file EDGE_GID)}
        chown -R "${user:-$image_user}:${group:-$image_user}" \
            "$out/server" "$out/devices" "$out/public"
    elif ! grep -qs "$(line_of EDGE_UID)" "$here/.env"; then
        # Perhaps you have written there yourself, without a line break at the end.
        printf '\nEDGE_UID=%s\nEDGE_GID=%s\n' "$(id -u)" "$(id -g)" >>"$here/.env"
        say "$here/.env: containers run as you, who can read the keys"
    fi
}

# Shows what a program says only if it fails.
quietly() {
    said=$("$@" 2>&1) || fail "$1: $said"
}

say() { echo "$*"; }

fail() {
    echo "make_certificates.sh: $*" >&2
    exit 1
}

main "$@"
