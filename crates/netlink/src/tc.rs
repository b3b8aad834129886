//! Traffic control for limiting a pod's bandwidth: token buckets, and redirection of incoming
//! packets to another link.
//!
//! Used by `attach` for the plugin `bandwidth`.

use crate::batch::Batch;
use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Message, MessageBuilder, array};

/// `tbf`: limits what leaves a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// The rate, in bytes per second.
    pub rate_bytes: u64,
    /// The burst, in bytes.
    pub burst_bytes: u32,
    /// The queue limit, in bytes; further packets are dropped.
    pub limit_bytes: u32,
}

/// A queueing discipline as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// The link's index.
    pub ifindex: u32,
    /// `tbf`, `ingress`, `noqueue`, ...
    pub kind: String,
    /// Whether it is the root discipline of the link.
    pub is_root: bool,
    /// The rate of a `tbf`, in bytes per second.
    pub rate_bytes: Option<u64>,
}

/// A filter that [`Batch::redirect_ingress`] made, or an equivalent one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect {
    /// The index of the target link; 0 after that link was deleted, when the packets are dropped.
    pub to: u32,
    handle: u32,
}

/// `1:`, the conventional handle of a root discipline.
const ROOT_HANDLE: u32 = 1 << 16;
/// `ffff:`
pub(crate) const INGRESS_HANDLE: u32 = 0xffff_0000;
/// Bytes of `struct tc_tbf_qopt`: two `struct tc_ratespec` of 12, limit, buffer, mtu.
const TBF_BYTES: usize = 36;
const RATE_OFFSET: usize = 8;
const LIMIT_OFFSET: usize = 24;
/// Bytes of `struct tc_u32_sel` with one key.
const SELECTOR_BYTES: usize = 32;
/// Bytes of `struct tc_mirred`.
const MIRRED_BYTES: usize = 28;
const EACTION_OFFSET: usize = 20;
const TARGET_OFFSET: usize = 24;

// === impl Batch ===

/// Traffic control.
impl Batch {
    /// Limits what leaves a link, replacing an earlier root discipline.
    pub fn replace_token_bucket(&mut self, ifindex: u32, bucket: &TokenBucket) -> &mut Self {
        self.push(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, |message| {
            tcmsg(message, ifindex, ROOT_HANDLE, TC_H_ROOT, 0);
            message.attr_str(TCA_KIND, "tbf").nested(TCA_OPTIONS, |options| {
                // The structure has a 32-bit rate; the 64-bit rate follows as an attribute.
                let rate = u32::try_from(bucket.rate_bytes).unwrap_or(u32::MAX);
                let mut parameters = [0; TBF_BYTES];
                parameters[RATE_OFFSET..RATE_OFFSET + 4].copy_from_slice(&rate.to_ne_bytes());
                parameters[LIMIT_OFFSET..LIMIT_OFFSET + 4].copy_from_slice(&bucket.limit_bytes.to_ne_bytes());
                options.attr(TCA_TBF_PARMS, &parameters);
                if bucket.rate_bytes > u64::from(u32::MAX) {
                    options.attr_u64(TCA_TBF_RATE64, bucket.rate_bytes);
                }
                options.attr_u32(TCA_TBF_BURST, bucket.burst_bytes);
            });
        })
    }

    /// Enables filters for packets that arrive on a link; EEXIST if they are enabled.
    pub fn add_ingress(&mut self, ifindex: u32) -> &mut Self {
        self.push(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, |message| {
            tcmsg(message, ifindex, INGRESS_HANDLE, TC_H_INGRESS, 0);
            message.attr_str(TCA_KIND, "ingress");
        })
    }

    /// Redirects all packets that arrive on a link to another one, for an `ifb`. The link must have
    /// an `ingress` or a `clsact`.
    pub fn redirect_ingress(&mut self, ifindex: u32, to: u32) -> &mut Self {
        self.push(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, |message| {
            tcmsg(message, ifindex, 0, TC_H_CLSACT_INGRESS, all_protocols_first());
            message.attr_str(TCA_KIND, "u32").nested(TCA_OPTIONS, |options| {
                // One key with an empty mask matches everything.
                let mut selector = [0; SELECTOR_BYTES];
                (selector[0], selector[2]) = (TC_U32_TERMINAL, 1);
                options.attr(TCA_U32_SEL, &selector).nested(TCA_U32_ACT, |actions| {
                    actions.nested(1, |action| {
                        action.attr_str(TCA_ACT_KIND, "mirred");
                        action.nested(TCA_ACT_OPTIONS, |options| {
                            let mut parameters = [[0; 4]; MIRRED_BYTES / 4];
                            parameters[2] = TC_ACT_STOLEN.to_ne_bytes();
                            parameters[EACTION_OFFSET / 4] = TCA_EGRESS_REDIR.to_ne_bytes();
                            parameters[TARGET_OFFSET / 4] = to.to_ne_bytes();
                            options.attr(TCA_MIRRED_PARMS, parameters.as_flattened());
                        });
                    });
                });
            });
        })
    }

    /// Reverses one [`redirect_ingress`](Self::redirect_ingress); other filters stay, whatever
    /// their priority.
    pub fn delete_redirect(&mut self, ifindex: u32, redirect: &Redirect) -> &mut Self {
        self.push(RTM_DELTFILTER, 0, |message| {
            tcmsg(message, ifindex, redirect.handle, TC_H_CLSACT_INGRESS, all_protocols_first());
            message.attr_str(TCA_KIND, "u32");
        })
    }

    /// Restores a link's default discipline; not found if it has that already.
    pub fn delete_root_qdisc(&mut self, ifindex: u32) -> &mut Self {
        self.push(RTM_DELQDISC, 0, |message| tcmsg(message, ifindex, ROOT_HANDLE, TC_H_ROOT, 0))
    }

    /// Reverses [`add_ingress`](Self::add_ingress), filters included.
    pub fn delete_ingress(&mut self, ifindex: u32) -> &mut Self {
        self.push(RTM_DELQDISC, 0, |message| tcmsg(message, ifindex, INGRESS_HANDLE, TC_H_INGRESS, 0))
    }
}

// === impl Socket ===

impl Socket {
    /// The queueing disciplines of all links.
    pub fn qdiscs(&mut self) -> Result<Vec<Qdisc>> {
        let fill = |message: &mut MessageBuilder<'_>| tcmsg(message, 0, 0, 0, 0);
        self.dump("list qdiscs", RTM_GETQDISC, fill, Qdisc::decode)
    }

    /// The queueing disciplines of a link.
    pub fn qdiscs_of(&mut self, ifindex: u32) -> Result<Vec<Qdisc>> {
        let fill = |message: &mut MessageBuilder<'_>| tcmsg(message, ifindex, 0, 0, 0);
        let decode = |message: &Message<'_>| Qdisc::decode(message).filter(|qdisc| qdisc.ifindex == ifindex);
        self.dump("list qdiscs", RTM_GETQDISC, fill, decode)
    }

    /// The ingress filters at the position and with the action of [`Batch::redirect_ingress`].
    pub fn redirects(&mut self, ifindex: u32) -> Result<Vec<Redirect>> {
        let fill = |message: &mut MessageBuilder<'_>| tcmsg(message, ifindex, 0, TC_H_CLSACT_INGRESS, 0);
        let decode = |message: &Message<'_>| {
            let of_link = array(message.payload, 4).map(u32::from_ne_bytes) == Some(ifindex);
            Redirect::decode(message).filter(|_| of_link)
        };
        match self.dump("list filters", RTM_GETTFILTER, fill, decode) {
            // There is no such discipline.
            Err(error) if error.errno() == Some(libc::EINVAL) => Ok(Vec::new()),
            result => result,
        }
    }
}

// === impl Qdisc ===

impl Qdisc {
    /// Decodes `RTM_NEWQDISC` and `RTM_DELQDISC`; `None` for other messages.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        if ![RTM_NEWQDISC, RTM_DELQDISC].contains(&message.kind) {
            return None;
        }
        let attributes = message.attributes(TCMSG_BYTES);
        let kind = attributes.find(TCA_KIND)?.text();
        let rate = || {
            let options = attributes.find(TCA_OPTIONS)?.nested();
            let wide = options.find(TCA_TBF_RATE64).and_then(|rate| rate.u64());
            let parameters = options.find(TCA_TBF_PARMS)?;
            wide.or_else(|| array(parameters.payload, RATE_OFFSET).map(u32::from_ne_bytes).map(u64::from))
        };
        Some(Self {
            ifindex: array(message.payload, 4).map(u32::from_ne_bytes)?,
            is_root: array(message.payload, 12).map(u32::from_ne_bytes)? == TC_H_ROOT,
            rate_bytes: (kind == "tbf").then(rate).flatten(),
            kind,
        })
    }
}

// === impl Redirect ===

impl Redirect {
    fn decode(message: &Message<'_>) -> Option<Self> {
        let word = |offset| array(message.payload, offset).map(u32::from_ne_bytes);
        if message.kind != RTM_NEWTFILTER || word(16)? != all_protocols_first() {
            return None;
        }
        let attributes = message.attributes(TCMSG_BYTES);
        attributes.find(TCA_KIND).filter(|kind| kind.text() == "u32")?;
        // The kernel also lists every priority and its table, without an action.
        let actions = attributes.find(TCA_OPTIONS)?.nested().find(TCA_U32_ACT)?;
        let action = actions.nested().next()?.nested();
        action.find(TCA_ACT_KIND).filter(|kind| kind.text() == "mirred")?;
        let parameters = action.find(TCA_ACT_OPTIONS)?.nested().find(TCA_MIRRED_PARMS)?.payload;
        let parameter = |offset| array(parameters, offset).map(u32::from_ne_bytes);
        let redirects = parameter(EACTION_OFFSET)? == TCA_EGRESS_REDIR;
        redirects.then_some(Self { to: parameter(TARGET_OFFSET)?, handle: word(8)? })
    }
}

/// Evaluated before all other filters.
fn all_protocols_first() -> u32 {
    all_protocols(1)
}

/// A filter for packets of all protocols.
pub(crate) fn all_protocols(priority: u16) -> u32 {
    u32::from(priority) << 16 | u32::from(ETH_P_ALL.to_be())
}

pub(crate) fn tcmsg(message: &mut MessageBuilder<'_>, ifindex: u32, handle: u32, parent: u32, info: u32) {
    // The first word is the family and its padding.
    let header: [[u8; 4]; TCMSG_BYTES / 4] = [0, ifindex, handle, parent, info].map(u32::to_ne_bytes);
    message.raw(header.as_flattened());
}
