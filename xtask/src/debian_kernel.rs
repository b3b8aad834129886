//! `cargo xtask old-kernel` and `cargo xtask new-kernel`: tests on kernels of Debian, in a virtual machine by emulation.
//! The old one lacks what newer kernels have (TCX, `BPF_F_ADJ_ROOM_DECAP_L3_IPV6`), and both have what the kernel of a
//! build machine may lack (wireguard, ipip, ipvlan, vlan, vrf, dummy; the new one netkit, too).
//!
//! The machine has the files of this one, read-only beneath a layer in memory. Its first program runs the tests' executables
//! and reports by the serial port. Nothing of it stays but the kernel's package, in target/old-kernel or target/new-kernel.

pub mod instructions;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use crate::error::{Error, Result};
use crate::packages;
use crate::process::{self, Ended};
use crate::suite::executables::{self, Executable, Kind};

/// Tests of one executable.
struct Tests {
    package: &'static str,
    kind: Kind,
    name: &'static str,
    /// Of the test harness.
    arguments: &'static [&'static str],
}

/// Which kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebianKernel {
    /// Of the installed release.
    Old,
    /// Of its backports: that of the next release.
    New,
}

const OLD_TESTS: [Tests; 5] = [
    Tests { package: "russet-linux", kind: Kind::Integration, name: "bpf", arguments: &["--skip", "tcx"] },
    Tests {
        package: "russet-overlay",
        kind: Kind::Integration,
        name: "overlay",
        arguments: &["wireguard", "ipip"],
    },
    Tests { package: "russet-plugins", kind: Kind::Unit, name: "russet_plugins", arguments: &[] },
    Tests {
        package: "russet",
        kind: Kind::Integration,
        name: "whole",
        arguments: &["--test-threads", "1", "fast_path::known", "fast_path::routed"],
    },
    // Behind the others: flows of these tests are two minutes old, and so must the machine be.
    Tests { package: "russet-overlay", kind: Kind::Unit, name: "russet_overlay", arguments: &["fast_path"] },
];

const NEW_TESTS: [Tests; 4] = [
    Tests { package: "russet-linux", kind: Kind::Integration, name: "bpf", arguments: &[] },
    Tests { package: "russet-attach", kind: Kind::Integration, name: "kernel", arguments: &["netkit"] },
    Tests {
        package: "russet",
        kind: Kind::Integration,
        name: "whole",
        arguments: &["--test-threads", "1", "fast_path::netkit", "fast_path::known", "fast_path::ipv6"],
    },
    Tests { package: "russet-overlay", kind: Kind::Unit, name: "russet_overlay", arguments: &["fast_path"] },
];

/// The package that depends on the current kernel.
const KERNEL: &str = "linux-image-amd64";
const BACKPORTS: &str = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main\n";
/// What the first program needs until it has the files of this machine.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];
/// Each line of the result begins so; the executable's name and its exit code follow.
const RESULT: &str = "executable of tests ended:";
/// The emulator's arguments for tests. With a thread for each processor, one ran on an instruction that the kernel had replaced
/// on the other: "Oops: int3" in `__netif_receive_skb_core`.
const EMULATOR: [&str; 2] = ["-accel", "tcg,thread=single"];
/// A test prints nothing for so long at most, by emulation.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);

/// Runs all of it; true if nothing failed.
pub fn run(which: DebianKernel) -> Result<bool> {
    prepare()?;
    let build = executables::build(&[], SILENCE_LIMIT)?;
    if !build.succeeded {
        return Err(Error::Found("the tests do not compile".to_owned()));
    }
    let name = which.name();
    let kernel = Kernel::installed(which)?;
    println!("{name}: {} starts", kernel.release);
    let mut results = Vec::new();
    let run = script(which.tests(), &build.executables)?;
    let ended = kernel.run(&run, &EMULATOR, |line| {
        println!("{line}");
        results.extend(line.strip_prefix(RESULT).map(|result| result.trim().to_owned()));
    })?;
    if let Ended::Silence(limit) = ended {
        println!("{name}: killed, since it said nothing for {} s", limit.as_secs());
    }
    let failed: Vec<&String> = results.iter().filter(|result| !result.ends_with(" 0")).collect();
    println!(
        "{name}: {} of {} executables of tests ended, failed: {failed:?}",
        results.len(),
        which.tests().len()
    );
    Ok(results.len() == which.tests().len() && failed.is_empty())
}

/// Has all that a virtual machine needs.
fn prepare() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::Found(
            "the virtual machine is one of x86-64, and this machine is none".to_owned(),
        ));
    }
    if !packages::is_root() {
        return Err(Error::Found("the packages of kernel and emulator need root".to_owned()));
    }
    packages::ensure()?;
    packages::ensure_machine()
}

// === impl DebianKernel ===

impl DebianKernel {
    const fn name(self) -> &'static str {
        match self {
            Self::Old => "old-kernel",
            Self::New => "new-kernel",
        }
    }

    const fn tests(self) -> &'static [Tests] {
        match self {
            Self::Old => &OLD_TESTS,
            Self::New => &NEW_TESTS,
        }
    }
}

/// A kernel's unpacked package.
struct Kernel {
    directory: PathBuf,
    release: String,
}

// === impl Kernel ===

impl Kernel {
    /// Downloads the package, unless it is there.
    fn installed(which: DebianKernel) -> Result<Self> {
        let directory = env::current_dir().map_err(Error::io("find the current directory"))?;
        let directory = &directory.join("target").join(which.name());
        fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
        let sources = match which {
            DebianKernel::Old => Vec::new(),
            DebianKernel::New => backports(directory)?,
        };
        let mut show = Command::new("apt-cache");
        let shown = process::output(show.args(&sources).args(["show", "--no-all-versions", KERNEL]))?;
        let shown = String::from_utf8_lossy(&shown);
        let name = shown.lines().find_map(|line| line.strip_prefix("Depends: ")?.split([' ', ',']).next());
        let name = name.filter(|name| name.starts_with("linux-image-"));
        let name = name.ok_or_else(|| Error::Found(format!("{KERNEL} names no package of a kernel")))?;
        let release = name.trim_start_matches("linux-image-").to_owned();
        let unpacked = directory.join(&release);
        if !unpacked.exists() {
            let script = "cd \"$1\"; name=$2 release=$3; shift 3; apt-get \"$@\" download -qq \"$name\" && \
                          rm -rf new && dpkg -x \"$name\"_*.deb new && depmod -b new \"$release\" && \
                          rm -f \"$name\"_*.deb && mv new \"$release\"";
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(directory).args([name, &release]).args(&sources);
            process::run(&mut command)?;
        }
        Ok(Self { directory: unpacked, release })
    }

    /// Writes the file system of the first program, which goes over to the files of this machine.
    fn make_first(&self, file: &Path, machine: &Path) -> Result<()> {
        let init = format!(
            "#!/bin/busybox sh\n\
             b=/bin/busybox; $b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev\n\
             for module in /modules/*; do $b insmod $module; done\n\
             $b mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose root /lower\n\
             $b mount -t tmpfs -o size=75% tmpfs /upper; $b mkdir /upper/new /upper/work\n\
             $b mount -t overlay -o lowerdir=/lower,upperdir=/upper/new,workdir=/upper/work overlay /root\n\
             for at in proc sys dev; do $b mount --move /$at /root/$at; done\n\
             exec $b switch_root /root /bin/sh {}\n",
            machine.display()
        );
        let script = "set -e; d=$(mktemp -d); trap 'rm -rf $d' EXIT\n\
                      mkdir -p $d/bin $d/proc $d/sys $d/dev $d/lower $d/upper $d/root $d/modules\n\
                      cp \"$(command -v busybox)\" $d/bin/busybox; cat > $d/init; chmod 755 $d/init\n\
                      kernel=$1 release=$2 file=$3; shift 3\n\
                      for module; do modprobe -d $kernel -S $release --show-depends $module; done |\n\
                      awk '/^insmod/ && !seen[$2]++ { printf \"%02d %s\\n\", n++, $2 }' |\n\
                      while read number module; do cp $module $d/modules/$number.ko; done\n\
                      cd $d; find . | cpio --quiet -o -H newc | gzip > $file\n";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&self.directory).arg(&self.release).arg(file).args(MODULES);
        process::filter(&mut command, init.into_bytes()).map(drop)
    }

    /// Runs a script in the machine, by an emulator with these arguments, and gives each line that it prints to `on_line`.
    fn run(&self, script: &str, emulator: &[&str], on_line: impl FnMut(&str)) -> Result<Ended> {
        let [first, machine] = ["initrd", "run"].map(|name| self.directory.with_file_name(name));
        write(&machine, &format!("{}{script}echo o > /proc/sysrq-trigger\nsleep 60\n", self.beginning()))?;
        self.make_first(&first, &machine)?;
        process::watch(self.boot(&first).args(emulator), SILENCE_LIMIT, on_line)
    }

    fn boot(&self, first: &Path) -> Command {
        let mut machine = Command::new("qemu-system-x86_64");
        machine.args(["-cpu", "max", "-smp", "2", "-m", "8192", "-nographic", "-no-reboot"]);
        machine.arg("-kernel").arg(self.directory.join(format!("boot/vmlinuz-{}", self.release)));
        machine.arg("-initrd").arg(first).args(["-append", "console=ttyS0 quiet panic=-1"]);
        let files = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap";
        machine.args(["-virtfs", files]).stdin(Stdio::null());
        machine
    }

    /// How a script begins.
    fn beginning(&self) -> String {
        let (modules, release) = (self.directory.join("lib/modules"), &self.release);
        format!(
            "mount -t bpf bpf /sys/fs/bpf; mount -t cgroup2 cgroup2 /sys/fs/cgroup\n\
             mkdir -p /dev/shm /dev/pts /lib/modules\n\
             mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp\n\
             mkdir -p /run/netns /run/lock; ln -sfn {}/{release} /lib/modules/{release}\n\
             export PATH={} HOME=/root RUST_BACKTRACE=1\n\
             modprobe -a tun vxlan veth bridge; ip link set lo up\n\
             # Without it, the module ipip makes tunl0 in each new network namespace.\n\
             echo 2 > /proc/sys/net/core/fb_tunnels_only_for_init_net\n",
            modules.display(),
            env::var("PATH").unwrap_or_default(),
        )
    }
}

/// apt's options by which it has the packages of backports only, which it lists here; the machine's own stay as they are.
fn backports(directory: &Path) -> Result<Vec<String>> {
    let (list, lists) = (directory.join("sources.list"), directory.join("lists"));
    fs::create_dir_all(lists.join("partial")).map_err(Error::io(format!("create {}", lists.display())))?;
    write(&list, BACKPORTS)?;
    let option = |name: &str, path: &Path| ["-o".to_owned(), format!("{name}={}", path.display())];
    let options = [
        option("Dir::Etc::SourceList", &list),
        option("Dir::Etc::SourceParts", Path::new("/dev/null")),
        option("Dir::State::Lists", &lists),
    ];
    let options = options.concat();
    process::run(Command::new("apt-get").args(&options).args(["-qq", "update"]))?;
    Ok(options)
}

/// Runs tests with the files of this machine.
fn script(tests: &[Tests], executables: &[Executable]) -> Result<String> {
    let mut text = String::new();
    for tests in tests {
        let is_meant = |it: &&Executable| {
            (it.package.as_str(), it.kind, it.name.as_str()) == (tests.package, tests.kind, tests.name)
        };
        let executable = executables.iter().find(is_meant);
        let executable = executable
            .ok_or_else(|| Error::Found(format!("{} has no tests {}", tests.package, tests.name)))?;
        let (directory, path) = (executable.directory.display(), executable.path.display());
        let arguments = tests.arguments.join(" ");
        let _ = writeln!(
            text,
            "cd {directory}; CARGO_MANIFEST_DIR={directory} {path} --ignored {arguments}; code=$?; echo; echo \"{RESULT} {} $code\"",
            executable.name
        );
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::io(format!("write {}", path.display())))
}
