//! The Debian packages that the tests use now, each with its reason; installs those that are missing.

use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};
use crate::process;

/// A package, a file by which to tell that it is there, and why the tests need it.
struct Package {
    name: &'static str,
    proof: &'static str,
    reason: &'static str,
}

const PACKAGES: &[Package] = &[
    Package {
        name: "iproute2",
        proof: "ip",
        reason: "`ip -j` is the second opinion on links, routes and neighbours; `ip netns` makes namespaces",
    },
    Package { name: "nftables", proof: "nft", reason: "`nft -j` is the second opinion on our rules" },
    Package {
        name: "iputils-ping",
        proof: "ping",
        reason: "pings between pods from outside our own program",
    },
    Package {
        name: "conntrack",
        proof: "conntrack",
        reason: "the second opinion on connections, their marks and their deletion",
    },
    Package { name: "tcpdump", proof: "tcpdump", reason: "the second opinion on files of `russet capture`" },
    Package { name: "ethtool", proof: "ethtool", reason: "takes a wire's offloads away" },
    Package { name: "bpftool", proof: "bpftool", reason: "detaches a program as another one would" },
    Package {
        name: "curl",
        proof: "curl",
        reason: "reads health and metrics from inside a node's namespace",
    },
    Package {
        name: "etcd-server",
        proof: "etcd",
        reason: "the etcd engine is proven on real members, one and three",
    },
    Package { name: "strace", proof: "strace", reason: "makes an etcd's disk slower for `bench ipam`" },
    Package { name: "openssl", proof: "openssl", reason: "makes the certificates of the tests of TLS" },
    Package { name: "e2fsprogs", proof: "mkfs.ext4", reason: "disks whose power tests cut" },
    Package { name: "procps", proof: "kill", reason: "tests end and pause etcd members with it" },
    Package { name: "etcd-client", proof: "etcdctl", reason: "`etcdctl` is the second opinion on etcd" },
    Package {
        name: "containerd",
        proof: "containerd",
        reason: "the container runtime that starts our plugins as clusters do",
    },
    Package {
        name: "iptables",
        proof: "iptables-save",
        reason: "what Debian's `portmap` writes its rules with",
    },
    Package {
        name: "python3",
        proof: "python3",
        reason: "the servers and clients of the tests of `portmap` and `bandwidth`",
    },
    Package { name: "binutils", proof: "strip", reason: "the executables of the tests of pages are copied" },
    Package { name: "jq", proof: "jq", reason: "pages read JSON with it" },
    Package { name: "runc", proof: "runc", reason: "what containerd starts pods with" },
    Package {
        name: "busybox-static",
        proof: "busybox",
        reason: "the pause image of containerd's pods, made without a registry",
    },
    Package {
        name: "podman",
        proof: "podman",
        reason: "the other runtime that calls plugins through Go's libcni, and finds our cache",
    },
    Package {
        name: "aardvark-dns",
        proof: "/usr/lib/podman/aardvark-dns",
        reason: "answers with the names of containers of the driver `russet`",
    },
    Package { name: "zsh", proof: "zsh", reason: "loads the completions that `russet` prints for it" },
    Package { name: "fish", proof: "fish", reason: "loads the completions that `russet` prints for it" },
    Package {
        name: "groff-base",
        proof: "groff",
        reason: "the manual's formatter, whose warnings are failures of our pages",
    },
    Package {
        name: "debootstrap",
        proof: "debootstrap",
        reason: "makes the fresh Debian on which packages are installed and removed",
    },
    Package {
        name: "chromium",
        proof: "chromium",
        reason: "shows the agent's page as operators see it, and keeps pictures",
    },
    Package { name: "rpm", proof: "rpm", reason: "the second opinion on the .rpm" },
    Package {
        name: "systemd",
        proof: "systemd-analyze",
        reason: "says how exposed the daemons of packaging/systemd are",
    },
    Package {
        name: "clang-19",
        proof: "clang-19",
        reason: "compiles the BPF programs again, whose objects are committed; pinned, because releases differ",
    },
    Package {
        name: "containernetworking-plugins",
        proof: "/usr/lib/cni/bridge",
        reason: "the reference plugins: chained by tests, and the other side of `bench cni`",
    },
];

/// What runs the tests of another kernel.
const MACHINE: &[Package] = &[
    Package { name: "qemu-system-x86", proof: "qemu-system-x86_64", reason: "the virtual machine" },
    Package { name: "kmod", proof: "depmod", reason: "finds its kernel's modules" },
    Package { name: "cpio", proof: "cpio", reason: "makes the file system of its first program" },
];

/// Where Debian puts programs; PATH may lack the `sbin` ones.
const PROGRAM_DIRS: [&str; 6] =
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin"];

/// Installs missing packages, and reports that on standard error, because standard output may be
/// JSON. Needs root only if something is missing.
pub fn ensure() -> Result<()> {
    let missing: Vec<&Package> = PACKAGES.iter().filter(|package| !package.present()).collect();
    if missing.is_empty() {
        eprintln!("packages: all {} present", PACKAGES.len());
        return Ok(());
    }
    install(&missing)
}

/// Installs what the virtual machine needs, if it is missing.
pub fn ensure_machine() -> Result<()> {
    ensure_all(MACHINE.iter())
}

/// Installs one of the packages if it is missing.
pub fn ensure_one(name: &str) -> Result<()> {
    ensure_all(PACKAGES.iter().filter(|package| package.name == name))
}

fn ensure_all(packages: impl Iterator<Item = &'static Package>) -> Result<()> {
    let missing: Vec<&Package> = packages.filter(|package| !package.present()).collect();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

fn install(missing: &[&Package]) -> Result<()> {
    for package in missing {
        eprintln!("packages: installing {}: {}", package.name, package.reason);
    }
    let names = missing.iter().map(|package| package.name);
    if !is_root() {
        let names = names.collect::<Vec<_>>().join(" ");
        return Err(Error::Found(format!("not root, so run yourself: apt-get install {names}")));
    }
    process::run(apt_get().args(["update", "-qq"]))?;
    process::run(apt_get().args(["install", "-y", "-qq", "--no-install-recommends"]).args(names))?;
    match missing.iter().find(|package| !package.present()) {
        None => Ok(()),
        Some(package) => {
            Err(Error::Found(format!("{} is installed and {} is not there", package.name, package.proof)))
        }
    }
}

/// Whether this process may do everything that the kernel tests do.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_uid(&status) == Some(0)
}

fn effective_uid(status: &str) -> Option<u32> {
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().nth(1)?.parse().ok()
}

fn apt_get() -> Command {
    let mut apt_get = Command::new("apt-get");
    apt_get.env("DEBIAN_FRONTEND", "noninteractive").stdout(std::io::stderr());
    apt_get
}

// === impl Package ===

impl Package {
    fn present(&self) -> bool {
        match self.proof.starts_with('/') {
            true => Path::new(self.proof).exists(),
            false => PROGRAM_DIRS.iter().any(|dir| Path::new(dir).join(self.proof).exists()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_user_counts_not_the_real_one() {
        assert_eq!(effective_uid("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t0"), Some(0));
        assert_eq!(effective_uid("Name:\tx\n"), None);
    }
}
