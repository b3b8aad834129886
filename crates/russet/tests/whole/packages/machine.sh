# A machine whose root is an overlay. The caller has put this shell into new namespaces. $1: an empty directory; $2: the root of a fresh Debian;
# $3: packages; $4: the script that takes the place of systemctl. It ends when its input does.
mount --make-rprivate /
mount -t tmpfs machine "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" machine "$1/root"
mkdir -p "$1/root/packages"
mount --bind "$3" "$1/root/packages"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
mount -t sysfs sysfs "$1/root/sys"
mount -t tmpfs run "$1/root/run"
mkdir -p "$1/root/run/netns" "$1/root/run/systemd/system"
cp "$4" "$1/root/usr/local/bin/systemctl"
chmod +x "$1/root/usr/local/bin/systemctl"
hostname worker-1
ip link set lo up
ip link add eth0 type veth peer name underlay
ip link set underlay up
ip link set eth0 up
ip address add 10.0.0.1/24 dev eth0
ip route add default via 10.0.0.254
exec chroot "$1/root" sh -c 'echo ready; read -r end || true'
