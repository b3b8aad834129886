//! Constants from the kernel's headers, with all attribute types as `u16`, for the encoders and
//! decoders.
//!
//! From linux/{netlink,rtnetlink,if_link,if_addr,neighbour,fib_rules}.h; `libc` has some of them, in four integer types.

// linux/netlink.h
pub(crate) const NLMSG_NOOP: u16 = 1;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
pub(crate) const NLMSG_OVERRUN: u16 = 4;
pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
pub(crate) const NLM_F_CAPPED: u16 = 0x100;
pub(crate) const NLM_F_ACK_TLVS: u16 = 0x200;
pub(crate) const NLMSGERR_ATTR_MSG: u16 = 1;
pub(crate) const NLMSGERR_ATTR_OFFS: u16 = 2;

// linux/rtnetlink.h
pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_SETLINK: u16 = 19;
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_DELADDR: u16 = 21;
pub(crate) const RTM_GETADDR: u16 = 22;
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_DELROUTE: u16 = 25;
pub(crate) const RTM_GETROUTE: u16 = 26;
pub(crate) const RTM_NEWNEIGH: u16 = 28;
pub(crate) const RTM_DELNEIGH: u16 = 29;
pub(crate) const RTM_GETNEIGH: u16 = 30;
pub(crate) const RTM_SETNEIGHTBL: u16 = 67;
pub(crate) const RTM_NEWRULE: u16 = 32;
pub(crate) const RTM_DELRULE: u16 = 33;
pub(crate) const RTM_GETRULE: u16 = 34;

// linux/netconf.h
pub(crate) const RTM_NEWNETCONF: u16 = 80;
pub(crate) const RTM_DELNETCONF: u16 = 81;
pub(crate) const RTM_GETNETCONF: u16 = 82;
/// `struct netconfmsg`, with its padding
pub(crate) const NETCONFMSG_BYTES: usize = 4;
pub(crate) const NETCONFA_IFINDEX: u16 = 1;
pub(crate) const NETCONFA_FORWARDING: u16 = 2;
pub(crate) const NETCONFA_RP_FILTER: u16 = 3;
pub(crate) const NETCONFA_PROXY_NEIGH: u16 = 5;

pub(crate) const RTM_NEWQDISC: u16 = 36;
pub(crate) const RTM_DELQDISC: u16 = 37;
pub(crate) const RTM_GETQDISC: u16 = 38;
pub(crate) const RTM_NEWTFILTER: u16 = 44;
pub(crate) const RTM_DELTFILTER: u16 = 45;
pub(crate) const RTM_GETTFILTER: u16 = 46;

// linux/pkt_sched.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h
pub(crate) const TCMSG_BYTES: usize = 20;
pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
pub(crate) const TC_H_ROOT: u32 = 0xffff_ffff;
pub(crate) const TC_H_INGRESS: u32 = 0xffff_fff1;
/// `TC_H_CLSACT` with `TC_H_MIN_INGRESS` and `TC_H_MIN_EGRESS`.
pub(crate) const TC_H_CLSACT_INGRESS: u32 = 0xffff_fff2;
pub(crate) const TC_H_CLSACT_EGRESS: u32 = 0xffff_fff3;
pub(crate) const TCA_BPF_FD: u16 = 6;
pub(crate) const TCA_BPF_NAME: u16 = 7;
pub(crate) const TCA_BPF_FLAGS: u16 = 8;
pub(crate) const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
pub(crate) const TCA_TBF_PARMS: u16 = 1;
pub(crate) const TCA_TBF_RATE64: u16 = 4;
pub(crate) const TCA_TBF_BURST: u16 = 6;
pub(crate) const TCA_U32_SEL: u16 = 5;
pub(crate) const TCA_U32_ACT: u16 = 7;
pub(crate) const TC_U32_TERMINAL: u8 = 1;
pub(crate) const TCA_ACT_KIND: u16 = 1;
pub(crate) const TCA_ACT_OPTIONS: u16 = 2;
pub(crate) const TCA_MIRRED_PARMS: u16 = 2;
pub(crate) const TC_ACT_STOLEN: u32 = 4;
pub(crate) const TCA_EGRESS_REDIR: u32 = 1;
pub(crate) const ETH_P_ALL: u16 = 3;

pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
pub(crate) const RTA_PRIORITY: u16 = 6;
pub(crate) const RTA_PREFSRC: u16 = 7;
pub(crate) const RTA_METRICS: u16 = 8;
pub(crate) const RTA_MULTIPATH: u16 = 9;
pub(crate) const RTA_TABLE: u16 = 15;
pub(crate) const RTA_VIA: u16 = 18;
pub(crate) const RTAX_MTU: u16 = 2;
pub(crate) const RTNH_F_ONLINK: u32 = 4;
pub(crate) const RTM_F_CLONED: u32 = 0x200;
pub(crate) const RTEXT_FILTER_SKIP_STATS: u32 = 8;

// linux/if_link.h
pub(crate) const IFLA_ADDRESS: u16 = 1;
pub(crate) const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
pub(crate) const IFLA_LINK: u16 = 5;
pub(crate) const IFLA_MASTER: u16 = 10;
pub(crate) const IFLA_TXQLEN: u16 = 13;
pub(crate) const IFLA_OPERSTATE: u16 = 16;
pub(crate) const IFLA_LINKINFO: u16 = 18;
pub(crate) const IFLA_IFALIAS: u16 = 20;
pub(crate) const IFLA_AF_SPEC: u16 = 26;
pub(crate) const IFLA_GROUP: u16 = 27;
pub(crate) const IFLA_NET_NS_FD: u16 = 28;
pub(crate) const IFLA_EXT_MASK: u16 = 29;
pub(crate) const IFLA_NUM_TX_QUEUES: u16 = 31;
pub(crate) const IFLA_NUM_RX_QUEUES: u16 = 32;
pub(crate) const IFLA_LINK_NETNSID: u16 = 37;
pub(crate) const IFLA_GSO_MAX_SIZE: u16 = 41;
pub(crate) const IFLA_GRO_MAX_SIZE: u16 = 58;
pub(crate) const IFLA_TSO_MAX_SIZE: u16 = 59;
pub(crate) const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
pub(crate) const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
pub(crate) const IFLA_INFO_KIND: u16 = 1;
pub(crate) const IFLA_INFO_DATA: u16 = 2;
pub(crate) const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub(crate) const IFLA_INFO_SLAVE_DATA: u16 = 5;
pub(crate) const IFLA_BRPORT_MODE: u16 = 4;
pub(crate) const IFLA_BRPORT_ISOLATED: u16 = 33;
pub(crate) const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub(crate) const IFLA_INET_CONF: u16 = 1;
pub(crate) const VETH: &str = "veth";
pub(crate) const VETH_INFO_PEER: u16 = 1;
pub(crate) const NETKIT: &str = "netkit";
pub(crate) const IFLA_NETKIT_PEER_INFO: u16 = 1;
pub(crate) const IFLA_NETKIT_MODE: u16 = 5;
pub(crate) const NETKIT_L2: u32 = 0;
pub(crate) const IFLA_BR_FORWARD_DELAY: u16 = 1;
pub(crate) const IFLA_BR_STP_STATE: u16 = 5;
pub(crate) const IFLA_BR_VLAN_FILTERING: u16 = 7;
pub(crate) const IFLA_BR_MCAST_SNOOPING: u16 = 23;
pub(crate) const IFLA_VXLAN_ID: u16 = 1;
pub(crate) const IFLA_VXLAN_GROUP: u16 = 2;
pub(crate) const IFLA_VXLAN_LINK: u16 = 3;
pub(crate) const IFLA_VXLAN_LOCAL: u16 = 4;
pub(crate) const IFLA_VXLAN_TTL: u16 = 5;
pub(crate) const IFLA_VXLAN_LEARNING: u16 = 7;
pub(crate) const IFLA_VXLAN_L2MISS: u16 = 13;
pub(crate) const IFLA_VXLAN_PORT: u16 = 15;
pub(crate) const IFLA_VXLAN_GROUP6: u16 = 16;
pub(crate) const IFLA_VXLAN_LOCAL6: u16 = 17;
pub(crate) const IFLA_VXLAN_UDP_CSUM: u16 = 18;
pub(crate) const IFLA_VXLAN_UDP_ZERO_CSUM6_TX: u16 = 19;
pub(crate) const IFLA_VXLAN_UDP_ZERO_CSUM6_RX: u16 = 20;
pub(crate) const IFLA_VXLAN_GBP: u16 = 23;
pub(crate) const IFLA_VXLAN_COLLECT_METADATA: u16 = 25;
pub(crate) const IFLA_VXLAN_DF: u16 = 29;
// linux/if_tunnel.h
pub(crate) const IFLA_IPTUN_LOCAL: u16 = 2;
pub(crate) const IFLA_IPTUN_REMOTE: u16 = 3;
pub(crate) const IFLA_IPTUN_PROTO: u16 = 9;
pub(crate) const IPPROTO_IPIP: u8 = 4;

// linux/if.h
pub(crate) const IFF_UP: u32 = 0x1;
pub(crate) const IFF_LOOPBACK: u32 = 0x8;
pub(crate) const IFF_RUNNING: u32 = 0x40;
pub(crate) const IFF_PROMISC: u32 = 0x100;
pub(crate) const IFF_LOWER_UP: u32 = 0x10000;

// linux/if_addr.h
pub(crate) const IFA_ADDRESS: u16 = 1;
pub(crate) const IFA_LOCAL: u16 = 2;
pub(crate) const IFA_BROADCAST: u16 = 4;
pub(crate) const IFA_CACHEINFO: u16 = 6;
pub(crate) const IFA_FLAGS: u16 = 8;
pub(crate) const IFA_PROTO: u16 = 11;

// linux/neighbour.h
pub(crate) const NDA_DST: u16 = 1;
pub(crate) const NDA_LLADDR: u16 = 2;
pub(crate) const NDA_VLAN: u16 = 5;
pub(crate) const NDA_PORT: u16 = 6;
pub(crate) const NDA_VNI: u16 = 7;
pub(crate) const NDA_IFINDEX: u16 = 8;
pub(crate) const NDA_PROTOCOL: u16 = 12;
pub(crate) const NTF_SELF: u8 = 0x02;
pub(crate) const NTF_MASTER: u8 = 0x04;
pub(crate) const NTF_PROXY: u8 = 0x08;
pub(crate) const NTF_ROUTER: u8 = 0x80;

// linux/fib_rules.h
pub(crate) const FRA_DST: u16 = 1;
pub(crate) const FRA_SRC: u16 = 2;
pub(crate) const FRA_IIFNAME: u16 = 3;
pub(crate) const FRA_PRIORITY: u16 = 6;
pub(crate) const FRA_FWMARK: u16 = 10;
pub(crate) const FRA_TABLE: u16 = 15;
pub(crate) const FRA_FWMASK: u16 = 16;
pub(crate) const FRA_OIFNAME: u16 = 17;
pub(crate) const FRA_PROTOCOL: u16 = 21;
pub(crate) const FR_ACT_TO_TBL: u8 = 1;
pub(crate) const FIB_RULE_INVERT: u32 = 0x2;

// linux/genetlink.h
pub(crate) const GENL_ID_CTRL: u16 = 0x10;
pub(crate) const CTRL_CMD_GETFAMILY: u8 = 3;
pub(crate) const CTRL_ATTR_FAMILY_ID: u16 = 1;
pub(crate) const CTRL_ATTR_FAMILY_NAME: u16 = 2;
pub(crate) const GENLMSGHDR_BYTES: usize = 4;

// linux/wireguard.h
pub(crate) const WG_CMD_GET_DEVICE: u8 = 0;
pub(crate) const WG_CMD_SET_DEVICE: u8 = 1;
pub(crate) const WG_GENL_VERSION: u8 = 1;
pub(crate) const WGDEVICE_A_IFINDEX: u16 = 1;
pub(crate) const WGDEVICE_A_PRIVATE_KEY: u16 = 3;
pub(crate) const WGDEVICE_A_PUBLIC_KEY: u16 = 4;
pub(crate) const WGDEVICE_A_LISTEN_PORT: u16 = 6;
pub(crate) const WGDEVICE_A_PEERS: u16 = 8;
pub(crate) const WGPEER_F_REMOVE_ME: u32 = 1;
pub(crate) const WGPEER_F_REPLACE_ALLOWEDIPS: u32 = 2;
pub(crate) const WGPEER_A_PUBLIC_KEY: u16 = 1;
pub(crate) const WGPEER_A_PRESHARED_KEY: u16 = 2;
pub(crate) const WGPEER_A_FLAGS: u16 = 3;
pub(crate) const WGPEER_A_ENDPOINT: u16 = 4;
pub(crate) const WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL: u16 = 5;
pub(crate) const WGPEER_A_ALLOWEDIPS: u16 = 9;
pub(crate) const WGALLOWEDIP_A_FAMILY: u16 = 1;
pub(crate) const WGALLOWEDIP_A_IPADDR: u16 = 2;
pub(crate) const WGALLOWEDIP_A_CIDR_MASK: u16 = 3;

// sys/socket.h, in the width that family headers have
pub(crate) const AF_UNSPEC: u8 = 0;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_BRIDGE: u8 = 7;
pub(crate) const AF_INET6: u8 = 10;

/// `struct ifinfomsg`, `struct ifaddrmsg`, `struct rtmsg`, `struct ndmsg`, `struct fib_rule_hdr`.
pub(crate) const IFINFOMSG_BYTES: usize = 16;
pub(crate) const IFADDRMSG_BYTES: usize = 8;
pub(crate) const RTMSG_BYTES: usize = 12;
pub(crate) const NDMSG_BYTES: usize = 12;
pub(crate) const FIB_RULE_HDR_BYTES: usize = 12;

/// The kernel's number for an address family.
pub(crate) const fn af(family: russet_addr::Family) -> u8 {
    match family {
        russet_addr::Family::V4 => AF_INET,
        russet_addr::Family::V6 => AF_INET6,
    }
}

/// The address family with this kernel number; `None` for families other than IP.
pub(crate) const fn family(af: u8) -> Option<russet_addr::Family> {
    match af {
        AF_INET => Some(russet_addr::Family::V4),
        AF_INET6 => Some(russet_addr::Family::V6),
        _ => None,
    }
}
