//! Tables: the namespaces of nf_tables. Russet's main table is `inet russet`.

use std::fmt;

/// The name of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table {
    /// The family of packets that its chains see.
    pub family: TableFamily,
    /// Its name.
    pub name: String,
}

/// The address family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// ARP.
    Arp,
    /// Packets at a device's ingress or egress.
    Netdev,
    /// Frames that cross a bridge.
    Bridge,
    /// IPv6.
    Ip6,
}

/// A table as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub table: Table,
    /// The kernel's handle.
    pub handle: u64,
    /// Its comment.
    pub comment: Option<String>,
    /// The netlink port of the socket that owns it, if there is one: the table is deleted with that
    /// socket.
    pub owner: Option<u32>,
    /// Whether its chains are not registered at any hook.
    pub dormant: bool,
}

// === impl Table ===

impl Table {
    /// The name of a table.
    pub fn new(family: TableFamily, name: impl Into<String>) -> Self {
        Self { family, name: name.into() }
    }

    /// A table of family `inet`.
    pub fn inet(name: impl Into<String>) -> Self {
        Self::new(TableFamily::Inet, name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name.escape_debug())
    }
}

// === impl TableFamily ===

impl TableFamily {
    /// `NFPROTO_*`
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Arp => 3,
            Self::Netdev => 5,
            Self::Bridge => 7,
            Self::Ip6 => 10,
        }
    }

    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Inet,
            2 => Self::Ip,
            3 => Self::Arp,
            5 => Self::Netdev,
            7 => Self::Bridge,
            10 => Self::Ip6,
            _ => return None,
        })
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Arp => "arp",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Ip6 => "ip6",
        })
    }
}
