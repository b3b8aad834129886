//! The services of an installation: the same units as in packages.

use std::path::Path;

use russet_agent::Paths;

/// A service of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// `russet agent`, which every installation has.
    Agent,
    /// `russet cri`.
    Cri,
    /// A template: `russet sandbox run` for each pod that has a manifest.
    Pod,
    /// `russet flanneld`.
    Flanneld,
}

/// The path of the command in packages' units.
const COMMAND: &str = "/usr/local/bin/russet";
/// A line that every unit of Russet has, and no other.
const MARK: &str = "Documentation=https://github.com/russet-net/russet";

// === impl Service ===

impl Service {
    /// All of them, in the order in which they are started.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Cri, Self::Pod, Self::Flanneld];

    /// The unit's name; a template's ends in `@.service`.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Agent => "russet-agent.service",
            Self::Cri => "russet-cri.service",
            Self::Pod => "russet-pod@.service",
            Self::Flanneld => "russet-flanneld.service",
        }
    }

    /// How to end it on the node with these paths. Units exist for the root `/` only.
    pub fn end(self, paths: &Paths) -> String {
        let verb = match self {
            Self::Agent => "agent",
            Self::Cri => "cri",
            Self::Pod => "sandbox",
            Self::Flanneld => "flanneld",
        };
        match paths.root() == Path::new("/") {
            true => format!("systemctl stop {}", self.unit()),
            false => format!("end `{}`", paths.command(verb)),
        }
    }

    pub fn from_unit(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.unit() == name)
    }

    /// Whether `name` is that of the unit, or of a template's instance.
    pub fn is_unit(self, name: &str) -> bool {
        let (before, after) = self.unit().split_once('@').unwrap_or((self.unit(), ""));
        match after {
            "" => name == before,
            _ => name.starts_with(&format!("{before}@")) && name.ends_with(after),
        }
    }

    /// The unit's text for the command at `command`.
    pub fn text(self, command: &Path) -> String {
        let text = match self {
            Self::Agent => include_str!("../../../../packaging/systemd/russet-agent.service"),
            Self::Cri => include_str!("../../../../packaging/systemd/russet-cri.service"),
            Self::Pod => include_str!("../../../../packaging/systemd/russet-pod@.service"),
            Self::Flanneld => include_str!("../../../../packaging/systemd/russet-flanneld.service"),
        };
        text.replace(COMMAND, &command.display().to_string())
    }

    /// Whether a unit's text is Russet's, of any version.
    pub fn is_ours(text: &[u8]) -> bool {
        String::from_utf8_lossy(text).lines().any(|line| line == MARK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_has_the_mark_and_the_commands_path() {
        for service in Service::ALL {
            let text = service.text(Path::new("/opt/x/russet"));
            assert!(Service::is_ours(text.as_bytes()), "{service:?}");
            assert!(text.contains("ExecStart=/opt/x/russet ") && !text.contains(COMMAND), "{text}");
            assert_eq!(Service::from_unit(service.unit()), Some(service));
        }
        assert!(!Service::is_ours(b"[Unit]\nDescription=foreign\n"));
    }

    #[test]
    fn the_unit_of_russet_cri_is_started_when_it_serves() {
        // `russet install --start` relies on systemctl. Before readiness, hanging plugins may run
        // into their deadlines one after the other.
        let text = Service::Cri.text(Path::new("/usr/local/bin/russet"));
        assert!(text.contains("\nType=notify\n") && text.contains("\nTimeoutStartSec=infinity\n"), "{text}");
        assert!(!text.contains("NotifyAccess"), "its own word, and no plugin's");
    }

    #[test]
    fn instances_belong_to_their_template() {
        assert!(Service::Pod.is_unit("russet-pod@web.service"));
        assert!(!Service::Pod.is_unit("russet-pod.service") && !Service::Pod.is_unit("russet-pod@web.timer"));
        assert!(Service::Cri.is_unit("russet-cri.service") && !Service::Cri.is_unit("russet-cri.service.d"));
    }
}
