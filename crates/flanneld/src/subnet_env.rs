//! `subnet.env`: what this node publishes for the CNI plugin, docker, and the next run of the
//! daemon (flannel.md section 7.3). It is written atomically and parsed field by field: an invalid
//! line is ignored.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use russet_addr::{Ipv4Net, Ipv6Net};
use russet_linux::file::{FileError, READABLE, write_atomic_with_mode};
use russet_model::flannel::SubnetKey;

/// Its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// `FLANNEL_NETWORK`.
    pub network: Option<Ipv4Net>,
    /// This node's part of it, without host bits; `FLANNEL_SUBNET` shows its first address.
    pub subnet: Option<Ipv4Net>,
    /// `FLANNEL_IPV6_NETWORK`.
    pub ipv6_network: Option<Ipv6Net>,
    /// This node's part of it, without host bits; `FLANNEL_IPV6_SUBNET` shows its first address.
    pub ipv6_subnet: Option<Ipv6Net>,
    /// `FLANNEL_MTU`: of pods, bytes; 0 if the parsed file has none.
    pub mtu: u32,
    /// `FLANNEL_IPMASQ`: whether the daemon masquerades, so that other programs do not.
    pub ipmasq: bool,
}

/// Why the file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Its directory could not be created.
    #[error("create directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// The file itself could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Limit of the file: 6 lines of less than 100 bytes, and an operator's comments.
const READ_MAX_BYTES: u64 = 64 * 1024;
/// Readable by all users, like flannel's.
const DIRECTORY_MODE: u32 = 0o755;

// === impl SubnetEnv ===

impl SubnetEnv {
    /// This node's subnets, as in the name of its lease.
    pub fn key(&self) -> SubnetKey {
        SubnetKey { v4: self.subnet, v6: self.ipv6_subnet }
    }

    /// The text, in flannel's order.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "FLANNEL_{name}={value}");
        };
        if let (Some(network), Some(subnet)) = (&self.network, &self.subnet) {
            line("NETWORK", network);
            line("SUBNET", &first_v4(*subnet));
        }
        if let (Some(network), Some(subnet)) = (&self.ipv6_network, &self.ipv6_subnet) {
            line("IPV6_NETWORK", network);
            line("IPV6_SUBNET", &first_v6(*subnet));
        }
        line("MTU", &self.mtu);
        line("IPMASQ", &self.ipmasq);
        text
    }

    /// Parses what is valid. A list of networks counts as none.
    pub fn parse(text: &str) -> Self {
        let mut env = Self::default();
        for (name, value) in text.lines().filter_map(assignment) {
            match name {
                "FLANNEL_NETWORK" => env.network = value.parse().ok().map(|net: Ipv4Net| net.trunc()),
                "FLANNEL_SUBNET" => env.subnet = value.parse().ok().map(|net: Ipv4Net| net.trunc()),
                "FLANNEL_IPV6_NETWORK" => {
                    env.ipv6_network = value.parse().ok().map(|net: Ipv6Net| net.trunc());
                }
                "FLANNEL_IPV6_SUBNET" => {
                    env.ipv6_subnet = value.parse().ok().map(|net: Ipv6Net| net.trunc());
                }
                "FLANNEL_MTU" => env.mtu = value.parse().unwrap_or(0),
                "FLANNEL_IPMASQ" => env.ipmasq = value == "true",
                _ => {}
            }
        }
        env
    }

    /// Writes the file, mode 0644, and its directory, mode 0755, where that is missing.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory);
            made.map_err(|source| WriteError::Directory { path: directory.to_owned(), source })?;
        }
        Ok(write_atomic_with_mode(path, self.render().as_bytes(), READABLE)?)
    }

    /// Reads the file; a missing one counts as empty.
    pub fn read(path: &Path) -> io::Result<Self> {
        text(path).map(|text| Self::parse(&text))
    }
}

/// The file's text, at most [`READ_MAX_BYTES`]; empty for a missing file.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(READ_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Splits `NAME=value` as a shell would: `export` and a pair of quotes are ignored.
pub(crate) fn assignment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let line = line.strip_prefix("export ").map_or(line, str::trim_start);
    let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
    let quoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    Some((name.trim_end(), quoted.unwrap_or(value)))
}

fn first_v4(subnet: Ipv4Net) -> String {
    let first = u32::from(subnet.network()).wrapping_add(1);
    format!("{}/{}", Ipv4Addr::from(first), subnet.prefix_len())
}

fn first_v6(subnet: Ipv6Net) -> String {
    let first = u128::from(subnet.network()).wrapping_add(1);
    format!("{}/{}", Ipv6Addr::from(first), subnet.prefix_len())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn dual() -> SubnetEnv {
        SubnetEnv {
            network: Some("10.5.0.0/16".parse().unwrap()),
            subnet: Some("10.5.29.0/24".parse().unwrap()),
            ipv6_network: Some("fd00:10:5::/48".parse().unwrap()),
            ipv6_subnet: Some("fd00:10:5:30::/64".parse().unwrap()),
            mtu: 1450,
            ipmasq: true,
        }
    }

    /// flannel.md section 7.3.
    #[test]
    fn the_lines_are_flannels_in_flannels_order() {
        let text = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:5::/48\n\
                    FLANNEL_IPV6_SUBNET=fd00:10:5:30::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        assert_eq!(dual().render(), text);
        assert_eq!(SubnetEnv::parse(text), dual());
        let v4 = SubnetEnv { ipv6_network: None, ipv6_subnet: None, ipmasq: false, ..dual() };
        assert_eq!(
            v4.render(),
            "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
        );
        let v6 = SubnetEnv { network: None, subnet: None, ..dual() };
        assert!(v6.render().starts_with("FLANNEL_IPV6_NETWORK="));
    }

    /// flannel.md sections 3.3 and 10.
    #[test]
    fn t14_garbage_in_the_file_is_ignored() {
        for text in [
            "",
            "FLANNEL_SUBNET=10.5.29.1/24,10.6.0.1/24",
            "FLANNEL_SUBNET=10.5.29.1",
            "garbage\0\n=\n",
            "#FLANNEL_SUBNET=10.5.29.1/24",
        ] {
            assert_eq!(SubnetEnv::parse(text), SubnetEnv::default(), "{text:?}");
        }
        let shell =
            SubnetEnv::parse("export FLANNEL_SUBNET=\"10.5.29.1/24\"\nFLANNEL_IPMASQ=yes\nFLANNEL_MTU=x\n");
        assert_eq!(shell, SubnetEnv { subnet: dual().subnet, ..SubnetEnv::default() });
    }

    /// flannel.md section 7.3.
    #[test]
    fn the_file_is_replaced_atomically_world_readable_and_its_directory_created() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run/flannel/subnet.env");
        assert_eq!(SubnetEnv::read(&path).unwrap(), SubnetEnv::default());
        SubnetEnv { mtu: 9000, ..dual() }.write(&path).unwrap();
        dual().write(&path).unwrap();
        assert_eq!(SubnetEnv::read(&path).unwrap(), dual());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o644, 0o755));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no litter");
        let blocked = path.join("below/a/file");
        assert!(dual().write(&blocked).unwrap_err().to_string().starts_with("create directory "));
    }
}
