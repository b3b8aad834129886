# Makes a machine of its own for the commands of a page: the caller has put this shell into new mount, network, PID and
# host name namespaces. $1: an empty directory; $2: the executable; $3: the clone; $4: the page's commands.
set -eu
mount --make-rprivate /
mount -t tmpfs machine "$1"
# What the commands write below these directories stays in the tmpfs.
for dir in etc opt srv usr/local var/lib; do
    mkdir -p "$1/upper/$dir" "$1/work/$dir"
    mount -t overlay -o "lowerdir=/$dir,upperdir=$1/upper/$dir,workdir=$1/work/$dir" machine "/$dir"
done
mount -t tmpfs machine /run
mount -t sysfs machine /sys
mkdir -p /run/netns /run/systemd/system
# A configuration or plugin of the host's is not the page's.
rm -rf /etc/cni /opt/cni /etc/russet /var/lib/cni /var/lib/russet
hostname worker-1
ip link set lo up
ip link add eth0 type veth peer name underlay
ip link set underlay up
ip link set eth0 up
ip address add 10.0.0.1/24 dev eth0
ip route add default via 10.0.0.254
# A clone in which `cargo xtask dist` has run. The command does the work of the small executable, too.
mkdir -p "$1/bin" "$1/clone/target/dist"
cp "$2" "$1/clone/target/dist/russet"
cp "$2" "$1/clone/target/dist/russet-cni"
ln -s "$3/packaging" "$1/clone/packaging"
cp "$3/crates/russet/tests/whole/docs/systemctl.py" "$1/bin/systemctl"
chmod +x "$1/bin/systemctl"
export PATH="$1/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
cd "$1/clone"
exec sh -eux "$4"
