//! Chains: lists of rules, and the hooks at which packets enter them.

use russet_addr::IfName;

use crate::table::{Table, TableFamily};

/// A chain, to be created or as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The table that contains it.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// The hook; `None` for a chain that is only jumped to.
    pub base: Option<Base>,
    /// Shown by `nft list`.
    pub comment: Option<String>,
}

/// The attachment of a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// What its rules may do.
    pub kind: ChainKind,
    /// The hook in the packet path.
    pub hook: Hook,
    /// Chains with lower priorities are evaluated first; see [`priority`].
    pub priority: i32,
    /// The verdict for packets that no rule decides.
    pub policy: Policy,
    /// The devices of an ingress or egress chain.
    pub devices: Vec<IfName>,
}

/// What the rules of a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// Everything except address translation.
    Filter,
    /// Address translation: sees only the first packet of each connection.
    Nat,
    /// Like filter; packets whose mark or addresses changed are routed again.
    Route,
}

/// The hooks in the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Before the routing decision.
    Prerouting,
    /// Delivery to this machine.
    Input,
    /// Forwarding through this machine.
    Forward,
    /// Packets sent by this machine.
    Output,
    /// After the routing decision, before packets leave.
    Postrouting,
    /// At a device, before all other hooks.
    Ingress,
    /// At a device, after all other hooks (netdev tables only).
    Egress,
}

/// The verdict for packets that no rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Packets continue.
    #[default]
    Accept,
    /// They are dropped.
    Drop,
}

/// A chain as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    /// What it is.
    pub chain: Chain,
    /// The kernel's handle.
    pub handle: u64,
}

/// The usual priorities (`NF_IP_PRI_*` of linux/netfilter_ipv4.h), with nft's names.
pub mod priority {
    /// `raw`: before connection tracking, for `notrack`.
    pub const RAW: i32 = -300;
    /// `mangle`
    pub const MANGLE: i32 = -150;
    /// `dstnat`
    pub const DSTNAT: i32 = -100;
    /// `filter`
    pub const FILTER: i32 = 0;
    /// `security`
    pub const SECURITY: i32 = 50;
    /// `srcnat`
    pub const SRCNAT: i32 = 100;
}

// === impl Chain ===

impl Chain {
    /// A chain that is only jumped to.
    pub fn new(table: &Table, name: impl Into<String>) -> Self {
        Self { table: table.clone(), name: name.into(), base: None, comment: None }
    }

    /// A base chain at `hook`, with policy accept.
    pub fn base(table: &Table, name: impl Into<String>, kind: ChainKind, hook: Hook, priority: i32) -> Self {
        let base = Base { kind, hook, priority, policy: Policy::Accept, devices: Vec::new() };
        Self { base: Some(base), ..Self::new(table, name) }
    }

    /// Sets the policy of a base chain.
    pub fn policy(mut self, policy: Policy) -> Self {
        if let Some(base) = &mut self.base {
            base.policy = policy;
        }
        self
    }

    /// Adds a device to an ingress or egress chain.
    pub fn device(mut self, device: IfName) -> Self {
        if let Some(base) = &mut self.base {
            base.devices.push(device);
        }
        self
    }

    /// Sets the comment, of at most 127 bytes.
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }
}

// === impl ChainKind ===

impl ChainKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Filter, Self::Nat, Self::Route].into_iter().find(|kind| kind.name() == name)
    }
}

// === impl Hook ===

impl Hook {
    /// The number of the hook, which depends on the family.
    pub(crate) const fn number(self, family: TableFamily) -> Option<u32> {
        use TableFamily::{Arp, Inet, Netdev};
        Some(match (family, self) {
            (Netdev, Self::Ingress) | (Arp, Self::Input) => 0,
            (Netdev, Self::Egress) | (Arp, Self::Output) => 1,
            (Netdev | Arp, _) => return None,
            (_, Self::Prerouting) => 0,
            (_, Self::Input) => 1,
            (_, Self::Forward) => 2,
            (_, Self::Output) => 3,
            (_, Self::Postrouting) => 4,
            (Inet, Self::Ingress) => 5,
            (_, Self::Ingress | Self::Egress) => return None,
        })
    }

    pub(crate) fn from_number(number: u32, family: TableFamily) -> Option<Self> {
        let all = [
            Self::Prerouting,
            Self::Input,
            Self::Forward,
            Self::Output,
            Self::Postrouting,
            Self::Ingress,
            Self::Egress,
        ];
        all.into_iter().find(|hook| hook.number(family) == Some(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_is_read_back_in_its_family() {
        for family in [TableFamily::Inet, TableFamily::Ip, TableFamily::Netdev, TableFamily::Arp] {
            for number in 0..8 {
                if let Some(hook) = Hook::from_number(number, family) {
                    assert_eq!(hook.number(family), Some(number));
                }
            }
        }
        assert_eq!(Hook::Forward.number(TableFamily::Netdev), None);
        assert_eq!(Hook::Egress.number(TableFamily::Inet), None);
    }
}
