//! Parameters of a link's neighbour table: values of `net/ipv4/neigh/LINK`, set by a message.

use crate::batch::Batch;
use crate::kernel::*;

/// linux/neighbour.h: `struct ndtmsg`, and the attributes of a table.
const NDTMSG_BYTES: usize = 4;
const NDTA_NAME: u16 = 1;
const NDTA_PARMS: u16 = 6;
const NDTPA_IFINDEX: u16 = 1;
const NDTPA_PROXY_DELAY: u16 = 13;
/// The kernel's name of the IPv4 table.
const ARP_TABLE: &str = "arp_cache";

// === impl Batch ===

impl Batch {
    /// The longest random delay of proxy ARP answers, in milliseconds (`proxy_delay`).
    pub fn set_proxy_delay(&mut self, ifindex: u32, proxy_delay_ms: u64) -> &mut Self {
        self.push(RTM_SETNEIGHTBL, 0, |message| {
            let mut header = [0; NDTMSG_BYTES];
            header[0] = AF_INET;
            message.raw(&header).attr_str(NDTA_NAME, ARP_TABLE);
            message.nested(NDTA_PARMS, |parms| {
                parms.attr_u32(NDTPA_IFINDEX, ifindex).attr_u64(NDTPA_PROXY_DELAY, proxy_delay_ms);
            });
        })
    }
}
