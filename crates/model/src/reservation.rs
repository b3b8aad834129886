//! Reservations: addresses that are only allocated on explicit request (calico-ipam.md section 1.8,
//! K8).

use std::net::IpAddr;

use russet_addr::{IpNet, host_net};
use serde_json::Value;

use crate::ResourceKind;
use crate::json::{DecodeError, Extra, Object};
use crate::resource::{Resource, Spec, SpecMembers};

/// A reservation with its envelope.
pub type IpReservation = Resource<IpReservationSpec>;

/// The content of a reservation's record.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IpReservationSpec {
    /// Prefixes or single addresses, as written.
    pub reserved_cidrs: Vec<String>,
    /// Members that we do not know.
    pub extra: Extra,
}

// === impl IpReservationSpec ===

impl IpReservationSpec {
    /// The prefixes. Empty and malformed entries reserve nothing.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.reserved_cidrs.iter().filter_map(|text| {
            let text = text.trim();
            let single = || text.parse::<IpAddr>().ok().map(host_net);
            text.parse::<IpNet>().ok().map(|net| net.trunc()).or_else(single)
        })
    }
}

impl Spec for IpReservationSpec {
    const KIND: ResourceKind = ResourceKind::IpReservation;
    const WHAT: &'static str = "reservation";

    fn from_members(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        Ok(Self { reserved_cidrs: fields.strings("reservedCIDRs")?, extra: fields.rest() })
    }

    fn to_value(&self) -> Value {
        Object::default().put_list("reservedCIDRs", &self.reserved_cidrs).finish(&self.extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_and_rubbish_reserve_nothing() {
        // calico-ipam.md section 1.8
        let text = r#"{"kind":"IPReservation","apiVersion":"projectcalico.org/v3","metadata":{"name":"r","creationTimestamp":null},"spec":{"reservedCIDRs":["10.1.0.24/31",""," ","10.1.0.27","no","fd80::1/128"]}}"#;
        let reservation = IpReservation::decode(text.as_bytes()).unwrap();
        let nets: Vec<String> = reservation.spec.nets().map(|net| net.to_string()).collect();
        assert_eq!(nets, ["10.1.0.24/31", "10.1.0.27/32", "fd80::1/128"]);
        assert_eq!(String::from_utf8(reservation.encode()).unwrap(), text);
    }
}
