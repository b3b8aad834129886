//! Links as read from the kernel.

use russet_addr::{IfName, Mac};

use super::{AddrGenMode, BridgePort, Ipip, PacketSizes, Vxlan};
use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Attribute, Attributes, Message, MessageBuilder, array};

/// A link of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index, never 0.
    pub index: u32,
    /// Its name; not an [`IfName`], because links of other programs may have names that this type
    /// refuses.
    pub name: String,
    /// `IFF_*`.
    pub flags: u32,
    /// Its MTU, in bytes.
    pub mtu_bytes: u32,
    /// Its MAC, if it has 6 bytes.
    pub mac: Option<Mac>,
    /// `veth`, `bridge`, `vxlan`, ...; `None` for physical links and the loopback.
    pub kind: Option<String>,
    /// The alias.
    pub alias: Option<String>,
    /// The link group; the default is 0.
    pub group: u32,
    /// The index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// The index of the link below it, or of a veth's peer, in the namespace `link_netnsid` if that
    /// is set.
    pub link: Option<u32>,
    /// The id of the namespace of `link` in the socket's namespace.
    pub link_netnsid: Option<i32>,
    /// Its operational state.
    pub operstate: OperState,
    /// Length of the transmit queue.
    pub tx_queue_len: u32,
    /// Its largest packets inside the kernel; 0 for what the kernel does not report.
    pub sizes: PacketSizes,
    /// The largest that `sizes` can be for its driver; 0 if the kernel does not report it (before 5.19).
    pub tso_max_bytes: u32,
    /// How IPv6 link-local addresses are generated; `None` without IPv6.
    pub addr_gen_mode: Option<AddrGenMode>,
    /// A VXLAN device's options.
    pub vxlan: Option<Vxlan>,
    /// Its options as a bridge port, if it is one.
    pub bridge_port: Option<BridgePort>,
    /// An IP-in-IP device's options.
    pub ipip: Option<Ipip>,
}

/// `IF_OPER_*`, RFC 2863.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OperState {
    /// Not reported by the driver.
    #[default]
    Unknown,
    /// A component is missing.
    NotPresent,
    /// No carrier.
    Down,
    /// The link below is down.
    LowerLayerDown,
    /// In a test mode.
    Testing,
    /// Waiting, for instance for authentication.
    Dormant,
    /// Ready.
    Up,
}

// === impl Link ===

impl Link {
    /// Whether it is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Whether it is one end of a pair: what one end sends, the other one receives.
    pub fn is_of_pair(&self) -> bool {
        matches!(self.kind.as_deref(), Some(VETH | NETKIT))
    }

    /// Whether it is one end of a netkit pair.
    pub fn is_netkit(&self) -> bool {
        self.kind.as_deref() == Some(NETKIT)
    }

    /// Whether it is up and has a carrier.
    pub fn is_running(&self) -> bool {
        self.flags & IFF_RUNNING != 0
    }

    /// Whether the driver sees a carrier.
    pub fn has_carrier(&self) -> bool {
        self.flags & IFF_LOWER_UP != 0
    }

    /// Whether promiscuous mode was requested.
    pub fn is_promiscuous(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }

    /// Whether it is a loopback.
    pub fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK != 0
    }

    /// Decodes `RTM_NEWLINK` and `RTM_DELLINK`; `None` for other messages.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, RTM_NEWLINK | RTM_DELLINK) || message.payload.first() == Some(&AF_BRIDGE) {
            return None;
        }
        let mut link = Self::empty(array(message.payload, 4).map(u32::from_ne_bytes).filter(|i| *i != 0)?);
        link.flags = array(message.payload, 8).map(u32::from_ne_bytes)?;
        for attribute in message.attributes(IFINFOMSG_BYTES) {
            link.take(&attribute);
        }
        Some(link)
    }

    fn empty(index: u32) -> Self {
        Self {
            index,
            name: String::new(),
            flags: 0,
            mtu_bytes: 0,
            mac: None,
            kind: None,
            alias: None,
            group: 0,
            master: None,
            link: None,
            link_netnsid: None,
            operstate: OperState::Unknown,
            tx_queue_len: 0,
            sizes: PacketSizes::default(),
            tso_max_bytes: 0,
            addr_gen_mode: None,
            vxlan: None,
            bridge_port: None,
            ipip: None,
        }
    }

    fn take(&mut self, attribute: &Attribute<'_>) {
        match attribute.kind {
            IFLA_IFNAME => self.name = attribute.text(),
            IFLA_MTU => self.mtu_bytes = attribute.u32().unwrap_or(0),
            IFLA_ADDRESS => self.mac = attribute.mac(),
            IFLA_IFALIAS => self.alias = Some(attribute.text()),
            IFLA_GROUP => self.group = attribute.u32().unwrap_or(0),
            IFLA_MASTER => self.master = attribute.u32().filter(|index| *index != 0),
            IFLA_LINK => self.link = attribute.u32().filter(|index| *index != 0),
            IFLA_LINK_NETNSID => self.link_netnsid = attribute.u32().map(u32::cast_signed),
            IFLA_OPERSTATE => self.operstate = OperState::from_number(attribute.u8().unwrap_or(0)),
            IFLA_TXQLEN => self.tx_queue_len = attribute.u32().unwrap_or(0),
            IFLA_TSO_MAX_SIZE => self.tso_max_bytes = attribute.u32().unwrap_or(0),
            IFLA_LINKINFO => self.take_info(&attribute.nested()),
            IFLA_AF_SPEC => self.addr_gen_mode = addr_gen_mode(&attribute.nested()),
            _ => self.sizes.take(attribute),
        }
    }

    fn take_info(&mut self, info: &Attributes<'_>) {
        self.kind = info.find(IFLA_INFO_KIND).map(|kind| kind.text());
        let data = info.find(IFLA_INFO_DATA);
        match self.kind.as_deref() {
            Some("vxlan") => self.vxlan = data.map(|data| Vxlan::decode(data.nested())),
            Some("ipip") => self.ipip = data.map(|data| Ipip::decode(data.nested())),
            _ => {}
        }
        if info.find(IFLA_INFO_SLAVE_KIND).is_some_and(|kind| kind.text() == "bridge") {
            self.bridge_port = info.find(IFLA_INFO_SLAVE_DATA).map(|data| BridgePort::decode(data.nested()));
        }
    }
}

fn addr_gen_mode(spec: &Attributes<'_>) -> Option<AddrGenMode> {
    let inet6 = spec.find(u16::from(AF_INET6))?;
    match inet6.nested().find(IFLA_INET6_ADDR_GEN_MODE)?.u8()? {
        0 => Some(AddrGenMode::Eui64),
        1 => Some(AddrGenMode::None),
        2 => Some(AddrGenMode::StablePrivacy),
        3 => Some(AddrGenMode::Random),
        _ => None,
    }
}

// === impl OperState ===

impl OperState {
    const fn from_number(number: u8) -> Self {
        match number {
            1 => OperState::NotPresent,
            2 => OperState::Down,
            3 => OperState::LowerLayerDown,
            4 => OperState::Testing,
            5 => OperState::Dormant,
            6 => OperState::Up,
            _ => OperState::Unknown,
        }
    }
}

// === impl Socket ===

/// Links.
impl Socket {
    /// All links of the namespace.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        self.dump("list links", RTM_GETLINK, |message| request(message, 0), Link::decode)
    }

    /// The link with this name; an error that [is not found](crate::NetlinkError::is_not_found) if
    /// there is none.
    pub fn link_by_name(&mut self, name: &IfName) -> Result<Link> {
        let fill = |message: &mut MessageBuilder<'_>| {
            request(message, 0);
            message.attr_str(IFLA_IFNAME, name.as_str());
        };
        self.get(|| format!("read link {name}"), RTM_GETLINK, fill, Link::decode)
    }

    /// The link with this index; an error that [is not found](crate::NetlinkError::is_not_found) if
    /// there is none.
    pub fn link_by_index(&mut self, index: u32) -> Result<Link> {
        let fill = |message: &mut MessageBuilder<'_>| request(message, index);
        self.get(|| format!("read link {index}"), RTM_GETLINK, fill, Link::decode)
    }
}

fn request(message: &mut MessageBuilder<'_>, index: u32) {
    let mut header = [0; IFINFOMSG_BYTES];
    header[0] = AF_UNSPEC;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    // Counters are half of an answer, and no caller uses them.
    message.raw(&header).attr_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
}
