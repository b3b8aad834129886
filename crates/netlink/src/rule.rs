//! Routing rules: they select the table for a packet.

use std::net::IpAddr;

use ipnet::IpNet;
use russet_addr::{Family, IfName};

use crate::batch::Batch;
use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Attribute, Message, MessageBuilder, array};

/// A rule that selects a table, as written and as read back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// IPv4 or IPv6.
    pub family: Family,
    /// The priority; lower numbers are evaluated first.
    pub priority: u32,
    /// The table.
    pub table: u32,
    /// Matches packets from this prefix.
    pub from: Option<IpNet>,
    /// Matches packets to this prefix.
    pub to: Option<IpNet>,
    /// Matches packets with this mark, under a mask.
    pub fwmark: Option<(u32, u32)>,
    /// Matches packets that arrived through this link.
    pub iif: Option<IfName>,
    /// Matches packets of sockets that are bound to this link.
    pub oif: Option<IfName>,
    /// Whether the match is inverted.
    pub invert: bool,
    /// The originator, as in routes.
    pub protocol: u8,
}

// === impl Rule ===

impl Rule {
    /// A rule for all packets.
    pub fn new(family: Family, priority: u32, table: u32) -> Self {
        Self {
            family,
            priority,
            table,
            from: None,
            to: None,
            fwmark: None,
            iif: None,
            oif: None,
            invert: false,
            protocol: 0,
        }
    }

    /// Decodes `RTM_NEWRULE` and `RTM_DELRULE`; `None` for other messages and for rules that select
    /// no table.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, RTM_NEWRULE | RTM_DELRULE) {
            return None;
        }
        let [af, to_len, from_len, _tos, table, _, _, action] = array(message.payload, 0)?;
        if action != FR_ACT_TO_TBL {
            return None;
        }
        let mut rule = Self::new(family(af)?, 0, u32::from(table));
        rule.invert = array(message.payload, 8).map(u32::from_ne_bytes)? & FIB_RULE_INVERT != 0;
        let (mut mark, mut mask) = (None, u32::MAX);
        for attribute in message.attributes(FIB_RULE_HDR_BYTES) {
            match attribute.kind {
                FRA_FWMARK => mark = attribute.u32(),
                FRA_FWMASK => mask = attribute.u32().unwrap_or(mask),
                FRA_DST => rule.to = net(rule.family, attribute.ip()?, to_len),
                FRA_SRC => rule.from = net(rule.family, attribute.ip()?, from_len),
                _ => rule.take(&attribute),
            }
        }
        // For "mark 0 under this mask" the kernel reports only the mask.
        let masked = mask != 0 && mask != u32::MAX;
        rule.fwmark = mark.map(|mark| (mark, mask)).or(masked.then_some((0, mask)));
        Some(rule)
    }

    fn take(&mut self, attribute: &Attribute<'_>) {
        match attribute.kind {
            FRA_PRIORITY => self.priority = attribute.u32().unwrap_or(0),
            FRA_TABLE => self.table = attribute.u32().unwrap_or(self.table),
            FRA_IIFNAME => self.iif = IfName::new(attribute.text()).ok(),
            FRA_OIFNAME => self.oif = IfName::new(attribute.text()).ok(),
            FRA_PROTOCOL => self.protocol = attribute.u8().unwrap_or(0),
            _ => {}
        }
    }

    fn encode(&self, message: &mut MessageBuilder<'_>) {
        let len = |net: &Option<IpNet>| net.map_or(0, |net| net.prefix_len());
        let table = u8::try_from(self.table).unwrap_or(0);
        message.raw(&[af(self.family), len(&self.to), len(&self.from), 0, table, 0, 0, FR_ACT_TO_TBL]);
        message.raw(&if self.invert { FIB_RULE_INVERT } else { 0 }.to_ne_bytes());
        message.attr_u32(FRA_PRIORITY, self.priority).attr_u32(FRA_TABLE, self.table);
        if let Some(net) = self.to {
            message.attr_ip(FRA_DST, net.network());
        }
        if let Some(net) = self.from {
            message.attr_ip(FRA_SRC, net.network());
        }
        if let Some((mark, mask)) = self.fwmark {
            message.attr_u32(FRA_FWMARK, mark).attr_u32(FRA_FWMASK, mask);
        }
        if let Some(name) = &self.iif {
            message.attr_str(FRA_IIFNAME, name.as_str());
        }
        if let Some(name) = &self.oif {
            message.attr_str(FRA_OIFNAME, name.as_str());
        }
        if self.protocol != 0 {
            message.attr_u8(FRA_PROTOCOL, self.protocol);
        }
    }
}

fn net(family: Family, address: IpAddr, prefix_len: u8) -> Option<IpNet> {
    (Family::of(address) == family).then(|| IpNet::new(address, prefix_len).ok()).flatten()
}

// === impl Batch ===

/// Routing rules.
impl Batch {
    /// Adds a rule; EEXIST if there is an equal one.
    pub fn add_rule(&mut self, rule: &Rule) -> &mut Self {
        self.push(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, |message| rule.encode(message))
    }

    /// Deletes the first rule that matches all given properties; ENOENT if there is none.
    pub fn delete_rule(&mut self, rule: &Rule) -> &mut Self {
        self.push(RTM_DELRULE, 0, |message| rule.encode(message))
    }
}

// === impl Socket ===

/// Routing rules.
impl Socket {
    /// All rules of a family that select a table.
    pub fn rules(&mut self, family: Family) -> Result<Vec<Rule>> {
        let mut header = [0; FIB_RULE_HDR_BYTES];
        header[0] = af(family);
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&header);
        };
        self.dump(&format!("list {family} rules"), RTM_GETRULE, fill, Rule::decode)
    }
}
