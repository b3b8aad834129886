//! The files of a sandbox: the log directory, and resolv.conf, hosts and hostname for its containers.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use crate::error::SandboxError;
use crate::{Config, Dns};

/// The limit for a node's resolv.conf or hosts file; a larger one is truncated.
const NODE_FILE_MAX_BYTES: u64 = 1024 * 1024;
const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
/// For files that processes of any user read.
const READABLE: u32 = 0o644;
const SEARCHABLE: u32 = 0o755;

/// The directory for containers' logs: readable by all users, whatever the umask. An existing one
/// is unchanged.
pub(crate) fn make_log_directory(path: &Path) -> Result<(), SandboxError> {
    if path.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(SEARCHABLE).create(path);
    let made = made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(SEARCHABLE)));
    made.map_err(|error| SandboxError::step("create log directory", path.display(), error))
}

/// The sandbox's directory, with its containers' files before its network is known.
pub(crate) fn prepare(dir: &Path, config: &Config) -> Result<(), SandboxError> {
    let failed = |error| SandboxError::step("prepare directory", dir.display(), error);
    DirBuilder::new().recursive(true).mode(SEARCHABLE).create(dir).map_err(failed)?;
    create(&dir.join("hostname"), &format!("{}\n", hostname(config)))?;
    create(&dir.join("hosts"), &hosts(config, &[])?)?;
    create(&dir.join("resolv.conf"), &node_resolv_conf()?)
}

/// Writes the pod's DNS settings to the file that its containers may have mounted already: the
/// inode stays. Without settings nothing is written, and a missing file is an error (cni-runtime.md
/// section 3.1).
pub(crate) fn rewrite_resolv_conf(path: &Path, dns: Option<&Dns>) -> Result<(), SandboxError> {
    match dns {
        Some(dns) if !dns.is_empty() => overwrite(path, &dns.resolv_conf()),
        _ => Ok(()),
    }
}

/// Writes the hosts file with the pod's own addresses, once they are known.
pub(crate) fn rewrite_hosts(dir: &Path, config: &Config, addresses: &[IpAddr]) -> Result<(), SandboxError> {
    overwrite(&dir.join("hosts"), &hosts(config, addresses)?)
}

fn hosts(config: &Config, addresses: &[IpAddr]) -> Result<String, SandboxError> {
    let mut text = match config.host_network {
        true => node_file(HOSTS)?,
        false => "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned(),
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    for address in addresses {
        let _ = writeln!(text, "{address}\t{}", hostname(config));
    }
    for alias in config.host_aliases.iter().filter(|alias| !alias.hostnames.is_empty()) {
        let _ = writeln!(text, "{}\t{}", alias.ip, alias.hostnames.join("\t"));
    }
    Ok(text)
}

/// The name inside: the node's own if none is configured, and always in the node's network.
fn hostname(config: &Config) -> String {
    if config.hostname.is_empty() || config.host_network {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        config.hostname.clone()
    }
}

/// The node's own resolv.conf, truncated if it is very large; empty if the node has none.
pub fn node_resolv_conf() -> Result<String, SandboxError> {
    node_file(RESOLV_CONF)
}

/// Empty if the node has none.
fn node_file(path: &str) -> Result<String, SandboxError> {
    let read = || -> io::Result<String> {
        let mut bytes = Vec::new();
        fs::File::open(path)?.take(NODE_FILE_MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|error| SandboxError::step("read", path, error)),
    }
}

fn create(path: &Path, text: &str) -> Result<(), SandboxError> {
    let written =
        fs::write(path, text).and_then(|()| fs::set_permissions(path, Permissions::from_mode(READABLE)));
    written.map_err(|error| SandboxError::step("write", path.display(), error))
}

fn overwrite(path: &Path, text: &str) -> Result<(), SandboxError> {
    let opened = OpenOptions::new().write(true).truncate(true).open(path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| SandboxError::step("rewrite", path.display(), error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::HostAlias;

    fn dns() -> Dns {
        let (searches, options) =
            (vec!["a.example".into(), "b.example".into()], vec!["ndots:5".into(), "rotate".into()]);
        Dns { servers: vec![[10, 96, 0, 10].into(), "fd00::a".parse().unwrap()], searches, options }
    }

    #[test]
    fn resolv_conf_has_its_lines_in_order_and_keeps_its_inode() {
        // cni-runtime.md section 3.1, resolv.conf
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        fs::write(&path, "nameserver 192.0.2.1\n".repeat(100)).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        rewrite_resolv_conf(&path, Some(&dns())).unwrap();
        let expected =
            "nameserver 10.96.0.10\nnameserver fd00::a\nsearch a.example b.example\noptions ndots:5 rotate\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    }

    #[test]
    fn without_dns_settings_nothing_is_written() {
        let absent = Path::new("/absent/resolv.conf");
        rewrite_resolv_conf(absent, None).unwrap();
        rewrite_resolv_conf(absent, Some(&Dns::default())).unwrap();
        let error = rewrite_resolv_conf(absent, Some(&dns())).unwrap_err().to_string();
        assert!(error.starts_with("rewrite /absent/resolv.conf: No such file"), "{error}");
    }

    #[test]
    fn the_log_directory_is_open_to_all_and_one_that_exists_stays() {
        // cni-runtime.md section 3.1, createPodSandbox
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pods/ns_web_uid");
        make_log_directory(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o755);
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        make_log_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(make_log_directory(&file).unwrap_err().to_string().starts_with("create log directory "));
    }

    #[test]
    fn hosts_names_the_pod_and_its_aliases() {
        let dir = tempfile::tempdir().unwrap();
        let alias = HostAlias { ip: [10, 0, 0, 9].into(), hostnames: vec!["db".into(), "db.example".into()] };
        let config = Config { hostname: "web-0".into(), host_aliases: vec![alias], ..Config::default() };
        prepare(dir.path(), &config).unwrap();
        rewrite_hosts(dir.path(), &config, &[[10, 1, 2, 3].into()]).unwrap();
        let text = fs::read_to_string(dir.path().join("hosts")).unwrap();
        assert!(text.ends_with("10.1.2.3\tweb-0\n10.0.0.9\tdb\tdb.example\n"), "{text}");
        assert!(text.starts_with("127.0.0.1\tlocalhost\n"), "{text}");
        assert_eq!(fs::read_to_string(dir.path().join("hostname")).unwrap(), "web-0\n");
    }

    #[test]
    fn a_pod_in_the_nodes_network_sees_the_nodes_names() {
        let config = Config { hostname: "web-0".into(), host_network: true, ..Config::default() };
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert_eq!(hostname(&config), node);
        assert_eq!(hosts(&config, &[]).unwrap().trim_end(), node_file(HOSTS).unwrap().trim_end());
    }

    #[test]
    fn valid_aliases_cannot_change_other_lines() {
        // cni-runtime.md section 3.1; the inputs are a runtime's requests with random changes
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/resolv-conf");
        let replayed = russet_testkit::replay(&corpus, |bytes| {
            let Ok(config) = serde_json::from_slice::<Config>(bytes) else { return false };
            if config.validate().is_err() {
                return false;
            }
            for line in hosts(&Config { host_network: false, ..config }, &[]).unwrap().lines() {
                assert!(
                    line.split_once('\t').is_some_and(|(ip, _)| ip.parse::<IpAddr>().is_ok()),
                    "{line:?}"
                );
            }
            true
        });
        assert!(replayed.files_read > 3 && replayed.inputs_read > 100, "{replayed:?}");
    }
}
