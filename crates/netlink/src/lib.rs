//! Access to the kernel's tables over netlink: links, addresses, routes, neighbours, forwarding
//! entries, rules and queueing disciplines.
//!
//! A [`Batch`] consists of encoded requests, a [`Socket`] sends them and maps every answer to its
//! request, and a [`Monitor`] receives events of changes. All calls are synchronous, and a socket
//! stays in the network namespace in which it was opened:
//!
//! ```no_run
//! use russet_netlink::{Batch, Route, Socket};
//!
//! let mut socket = Socket::route()?;
//! let mut batch = Batch::new();
//! batch.replace_route(&Route::via("10.1.0.0/26".parse()?, "10.0.0.7".parse()?));
//! socket.execute(&batch)?; // add route 10.1.0.0/26 via 10.0.0.7: EINVAL: Nexthop has invalid gateway
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Used by `attach`, `overlay` and `linux`; `nft` uses [`wire`] and the socket for nf_tables. This
//! crate makes no decisions. dataplane.md section 3.1 explains why no existing library is used.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod address;
mod batch;
mod describe;
mod error;
mod generic;
mod kernel;
mod link;
mod lookup;
mod monitor;
mod neighbour;
mod neighbour_parms;
mod netconf;
mod ports;
mod route;
mod rule;
mod socket;
mod tc;
mod tc_bpf;
pub mod wire;
pub mod wireguard;

pub use address::{Address, AddressFlags, Scope};
pub use batch::{Batch, Describe};
pub use error::{BatchError, NetlinkError, Result, errno_name};
pub use link::{
    AddrGenMode, Bridge, BridgePort, Df, Ipip, Ipv4Conf, Link, LinkAdd, LinkDel, LinkKind, LinkRef, LinkSet,
    OperState, PacketSizes, Peer, Vxlan,
};
pub use lookup::RouteLookup;
pub use monitor::{AttributedEvent, Change, Event, Monitor, Topic};
pub use neighbour::{FdbEntry, FdbTable, Neighbour, NeighbourState};
pub use netconf::{Conf, ConfTarget};
pub use ports::{is_own_netfilter_port, is_own_route_port};
pub use route::{NextHop, Route, RouteFilter, RouteKind};
pub use rule::Rule;
pub use socket::{REPLY_DEADLINE_S, Socket};
pub use tc::{Qdisc, Redirect, TokenBucket};
pub use tc_bpf::{BpfFilter, Direction, Filter};
