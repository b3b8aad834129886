//! Generic netlink: families have names, and numbers that the running kernel assigns. Used by
//! `wireguard`.

use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Message, MessageBuilder};

/// `struct genlmsghdr`.
pub(crate) fn header(message: &mut MessageBuilder<'_>, command: u8, version: u8) {
    message.raw(&[command, version, 0, 0]);
}

// === impl Socket ===

/// Generic netlink.
impl Socket {
    /// The number of a family; an error that [is not found](crate::NetlinkError::is_not_found) if
    /// the kernel does not have it.
    pub fn family_id(&mut self, name: &str) -> Result<u16> {
        let fill = |message: &mut MessageBuilder<'_>| {
            header(message, CTRL_CMD_GETFAMILY, 1);
            message.attr_str(CTRL_ATTR_FAMILY_NAME, name);
        };
        let decode = |message: &Message<'_>| {
            message.attributes(GENLMSGHDR_BYTES).find(CTRL_ATTR_FAMILY_ID).and_then(|id| id.u16())
        };
        self.get(|| format!("look up netlink family {name}"), GENL_ID_CTRL, fill, decode)
    }
}
