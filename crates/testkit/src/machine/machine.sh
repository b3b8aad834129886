# machine.sh boot|remove GROUP [DIRECTORY]: parts of machine.rs that are mounts and control groups.
#
# boot: the first process of a machine, in its network namespace. It ends with its standard input, and the kernel then kills all that runs in the machine.
# DIRECTORY is empty. remove: removes the machine's control groups.
set -eu
task=$1 group=$2 directory=${3-}

# For each hierarchy of control groups runs a command that finds them at $groups, the caller's own among them at $own. They are mounted here: a test's /sys has none.
each_hierarchy() {
  groups=$(mktemp -d)
  while IFS=: read -r _ hierarchy path; do
    case $hierarchy in
      '') continue ;;
      name=*) options=none,$hierarchy ;;
      *) options=$hierarchy ;;
    esac
    mount -t cgroup -o $options cgroup $groups
    own=$groups$path
    "$@"
    umount $groups
  done < /proc/self/cgroup
  rmdir $groups
}

remove() {
  # Those of earlier tests, too, whose process was killed: its number is in their names.
  for found in $own/russet-test-*; do
    pid=${found##*/russet-test-} pid=${pid%%-*}
    if [ "${found##*/}" = "$group" ] || { [ -d "$found" ] && [ ! -d "/proc/$pid" ]; }; then
      find "$found" -depth -type d -exec rmdir {} ';'
    fi
  done
}

join() {
  mkdir $own/$group
  # A new set of processors is empty, and no process may join it.
  for file in cpuset.cpus cpuset.mems; do
    [ ! -e $own/$file ] || cat $own/$file > $own/$group/$file
  done
  echo 0 > $own/$group/cgroup.procs
}

# Runs in the machine's namespaces of mounts, processes and control groups.
furnish() {
  umount -R -l /sys
  mount -t sysfs sysfs /sys
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  while IFS=: read -r _ hierarchy _; do
    case $hierarchy in
      '') continue ;;
      name=*) options=none,$hierarchy ;;
      *) options=$hierarchy ;;
    esac
    mkdir /sys/fs/cgroup/${hierarchy#name=}
    mount -t cgroup -o $options cgroup /sys/fs/cgroup/${hierarchy#name=}
  done < /proc/self/cgroup

  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir /run/netns /run/sysctl
  mount -t tmpfs -o mode=755 tmpfs $directory
  for top in etc opt var; do
    mkdir -p $directory/$top $directory/work/$top
    mount -t overlay -o lowerdir=/$top,upperdir=$directory/$top,workdir=$directory/work/$top overlay /$top
  done
  for name in cni calico russet kubelet containerd; do
    rm -rf /etc/$name /opt/$name /var/lib/$name /var/log/$name
  done
  rm -rf /var/log/pods /var/log/containers
  # An overlay cannot be a layer of another one, as containerd makes them.
  for name in kubelet containerd; do
    mkdir -p $directory/$name /var/lib/$name
    mount --bind $directory/$name /var/lib/$name
  done
  # kubelet sets these for the whole kernel: it sees copies.
  for sysctl in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    copy=/run/sysctl/$(echo $sysctl | tr / .)
    cat /proc/sys/$sysctl > $copy
    mount --bind $copy /proc/sys/$sysctl
  done
  # Containers get the machine's later mounts.
  mount --make-rshared /
}

case $task in
  remove) each_hierarchy remove ;;
  boot)
    if ! cut -d: -f2 /proc/self/cgroup | grep -q memory; then
      echo 'a machine needs control groups of version 1: /proc/self/cgroup names no hierarchy "memory"' >&2
      exit 1
    fi
    each_hierarchy remove
    each_hierarchy join
    exec unshare --mount --cgroup --pid --fork --kill-child --mount-proc sh "$0" furnish "$group" "$directory" ;;
  furnish)
    furnish
    # The kernel reaps orphans of a parent that ignores this.
    trap '' CHLD
    echo ready
    exec cat > /dev/null ;;
esac
