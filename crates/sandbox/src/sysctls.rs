//! The sysctls that a pod may set: those of its own namespaces. Others would apply to the whole
//! node.

use crate::Config;

/// A sysctl that the pod cannot set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    /// It is the node's.
    #[error(
        "sysctl {name:?} belongs to the whole node; a pod may set net.*, kernel.shm*, kernel.msg*, kernel.sem and fs.mqueue.*"
    )]
    NotNamespaced {
        /// Its name as it came.
        name: String,
    },
    /// It belongs to a namespace that this pod shares with the node.
    #[error("sysctl {name:?} cannot be set with {shared}: it would be the node's")]
    Shared {
        /// Its name as it came.
        name: String,
        /// `host network` or `host IPC`.
        shared: &'static str,
    },
    /// The name is invalid.
    #[error("sysctl {name:?} is not a name such as net.core.somaxconn")]
    Name {
        /// Its name as it came.
        name: String,
    },
}

/// Kubernetes' limit.
const NAME_MAX_BYTES: usize = 253;

/// Paths below `/proc/sys` and their values, of those that exist as soon as the namespaces do.
/// Checks all.
pub(crate) fn plan(config: &Config) -> Result<Vec<(String, String)>, SysctlError> {
    let mut all = all(config)?;
    all.retain(|(path, _)| !names_an_interface(path));
    Ok(all)
}

/// The others: the kernel has them once the pod has that interface, so they are set after the
/// attachment, as under containerd.
pub(crate) fn of_interfaces(config: &Config) -> Result<Vec<(String, String)>, SysctlError> {
    let mut all = all(config)?;
    all.retain(|(path, _)| names_an_interface(path));
    Ok(all)
}

/// Why each of those that cannot be a pod's is none.
pub(crate) fn problems(config: &Config) -> impl Iterator<Item = SysctlError> {
    config.sysctls.keys().filter_map(|name| checked(name, config.host_network, config.host_ipc).err())
}

fn all(config: &Config) -> Result<Vec<(String, String)>, SysctlError> {
    let check = |(name, value): (&String, &String)| {
        let path = checked(name, config.host_network, config.host_ipc)?;
        Ok((path, value.clone()))
    };
    config.sysctls.iter().map(check).collect()
}

/// As `net/ipv4/conf/eth0/arp_ignore` does; `all` and `default` are not interfaces, and every
/// namespace has `lo`.
fn names_an_interface(path: &str) -> bool {
    let mut parts = path.split('/');
    let (net, _family, kind) = (parts.next(), parts.next(), parts.next());
    let per_interface = net == Some("net") && matches!(kind, Some("conf" | "neigh"));
    per_interface && parts.next().is_some_and(|name| !matches!(name, "all" | "default" | "lo"))
}

fn checked(name: &str, host_network: bool, host_ipc: bool) -> Result<String, SysctlError> {
    let path = path_of(name);
    let sound = |part: &str| {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        !matches!(part, "" | "." | "..") && part.bytes().all(good)
    };
    if name.len() > NAME_MAX_BYTES || !path.split('/').all(sound) {
        return Err(SysctlError::Name { name: name.chars().take(NAME_MAX_BYTES).collect() });
    }
    let name = || name.to_owned();
    let ipc = match path.strip_prefix("kernel/") {
        Some(below) => below == "sem" || below.starts_with("shm") || below.starts_with("msg"),
        None => path.starts_with("fs/mqueue/"),
    };
    match (path.starts_with("net/"), ipc) {
        (true, _) if host_network => Err(SysctlError::Shared { name: name(), shared: "host network" }),
        (_, true) if host_ipc => Err(SysctlError::Shared { name: name(), shared: "host IPC" }),
        (false, false) => Err(SysctlError::NotNamespaced { name: name() }),
        _ => Ok(path),
    }
}

/// The first separator of a name is its separator; the other character replaces it inside a part,
/// as for the dot in an interface's name (sysctl(8)): `net.ipv4.conf.eth0/100.forwarding` is
/// `net/ipv4/conf/eth0.100/forwarding`.
fn path_of(name: &str) -> String {
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    match name.find(['.', '/']).and_then(|at| name.as_bytes().get(at)) {
        Some(b'.') => name.chars().map(swap).collect(),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_own_namespaces_are_paths_whatever_separates_them() {
        for (name, path) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("net/core/somaxconn", "net/core/somaxconn"),
            ("net.ipv4.conf.eth0/100.forwarding", "net/ipv4/conf/eth0.100/forwarding"),
            ("net/ipv4/conf/eth0.100/forwarding", "net/ipv4/conf/eth0.100/forwarding"),
            ("kernel.shm_rmid_forced", "kernel/shm_rmid_forced"),
            ("kernel.msgmax", "kernel/msgmax"),
            ("kernel.sem", "kernel/sem"),
            ("fs.mqueue.msg_max", "fs/mqueue/msg_max"),
        ] {
            assert_eq!(checked(name, false, false).as_deref(), Ok(path), "{name}");
        }
    }

    #[test]
    fn parameters_of_the_node_are_refused_by_name() {
        // cni-runtime.md section 3.1: sysctls are part of the sandbox's linux section
        for name in [
            "kernel.panic",
            "vm.swappiness",
            "kernel.semaphore",
            "kernel.hostname",
            "fs.file-max",
            "network.x",
        ] {
            let error = checked(name, false, false).unwrap_err();
            assert_eq!(error, SysctlError::NotNamespaced { name: name.to_owned() });
        }
        let shared = |error: Result<String, SysctlError>| error.unwrap_err().to_string();
        assert!(shared(checked("net.core.somaxconn", true, false)).contains("with host network"));
        assert!(shared(checked("kernel.sem", false, true)).contains("with host IPC"));
        assert!(checked("kernel.sem", true, false).is_ok());
        assert!(checked("net.core.somaxconn", false, true).is_ok());
    }

    #[test]
    fn those_of_an_interface_wait_for_it() {
        let names = [
            "net.ipv4.conf.eth0.arp_ignore",
            "net.ipv6.neigh.eth0.gc_stale_time",
            "net.ipv4.conf.all.arp_ignore",
            "net.ipv6.conf.default.accept_ra",
            "net.ipv4.conf.lo.rp_filter",
            "net.core.somaxconn",
            "kernel.sem",
        ];
        let sysctls = names.map(|name| (name.to_owned(), "1".to_owned())).into();
        let config = Config { sysctls, ..Config::default() };
        let paths = |plan: Vec<(String, String)>| plan.into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        let late = paths(of_interfaces(&config).unwrap());
        assert_eq!(late, ["net/ipv4/conf/eth0/arp_ignore", "net/ipv6/neigh/eth0/gc_stale_time"]);
        assert_eq!(paths(plan(&config).unwrap()).len(), names.len() - late.len());
    }

    #[test]
    fn a_name_cannot_leave_its_directory() {
        let long = format!("net.{}", "a".repeat(250));
        for name in [
            "",
            "net",
            "net.",
            "net..x",
            "net/../kernel/panic",
            "net./.x",
            "kernel.shm/../panic",
            "net.a b",
            "net.a\n",
            &long,
        ] {
            assert!(checked(name, false, false).is_err(), "{name:?}");
        }
    }
}
