#!/bin/sh
# Runs a command as a user without any rights, in a clone of this checkout below a home of his that nobody else can enter:
#
#     sudo tests/as_ordinary_user.sh make quick
#
# The user, his home and his processes are gone at the end. He has the PATH of Debian, without /usr/sbin, and of the
# environment of root only the settings of pip; without CI, since what needs root is left out for him.
set -eu

[ "$(id -u)" = 0 ] || { echo "$0 makes a user, which needs root: sudo $0 $*" >&2; exit 2; }
[ $# -gt 0 ] || { echo "usage: $0 COMMAND [ARGUMENT…]" >&2; exit 2; }
checkout=$(cd "$(dirname "$0")/.." && pwd)
home=$(mktemp -d /var/tmp/home-XXXXXX)
user=tests-$$

leave() {
    pkill -KILL -u "$user" || true
    userdel "$user" || true
    rm -rf "$home"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

useradd --no-create-home --home-dir "$home" --shell /bin/sh --user-group "$user"
git -c safe.directory='*' clone --quiet "$checkout" "$home/stream-server"
chown -R "$user:$user" "$home"
chmod 700 "$home"
cd "$home/stream-server"
# The settings of pip name packages that are here already.
# shellcheck disable=SC2046
setpriv --reuid "$user" --regid "$user" --clear-groups env -i HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/sh \
    PATH=/usr/local/bin:/usr/bin:/bin $(env | grep '^PIP_[A-Z_]*=[^ ]*$') "$@"
