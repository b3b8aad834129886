//! IPReservation (calico-ipam.md section 1.8, K8).

use std::net::IpAddr;

use russet_addr::IpNet;
use russet_model::{IpReservation, IpReservationSpec};

use super::fields::Field;
use super::fields::Shape::{List, Text};
use super::{Definition, Problems, TableContext};

/// How many characters of the list of prefixes a table shows, as in calicoctl.
const SHOWN_MAX_CHARS: usize = 80;

impl Definition for IpReservationSpec {
    const WORDS: &'static [&'static str] = &["reservation", "reservations"];
    const FIELDS: &'static [Field] = &[Field("reservedCIDRs", List(&Text))];
    const STATUS: &'static [Field] = &[];

    fn heading(wide: bool) -> &'static [&'static str] {
        if wide { &["NAME", "CIDRS"] } else { &["NAME"] }
    }

    fn row(reservation: &IpReservation, wide: bool, _seen: &TableContext) -> Vec<String> {
        let mut row = vec![reservation.metadata.name.clone()];
        if wide {
            let mut cidrs = reservation.spec.reserved_cidrs.join(",");
            if let Some((end, _)) = cidrs.char_indices().nth(SHOWN_MAX_CHARS) {
                cidrs.replace_range(end.., "...");
            }
            row.push(cidrs);
        }
        row
    }

    /// Calico up to 3.32 crashes on an entry that is not a prefix.
    fn check(reservation: &mut IpReservation, problems: &mut Problems) {
        for (index, text) in reservation.spec.reserved_cidrs.iter().enumerate() {
            let good = text.parse::<IpNet>().is_ok() || text.parse::<IpAddr>().is_ok();
            let problem = format!("{text:.60?} is neither a prefix nor an address");
            problems.unless(good, &format!("spec.reservedCIDRs[{index}]"), &problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(cidrs: &[&str]) -> IpReservation {
        let reserved_cidrs = cidrs.iter().map(|text| (*text).to_owned()).collect();
        IpReservation::new("r", IpReservationSpec { reserved_cidrs, ..IpReservationSpec::default() })
    }

    #[test]
    fn entries_that_crash_peers_are_refused() {
        let mut problems = Problems::default();
        IpReservationSpec::check(
            &mut reservation(&["10.0.0.0/30", "10.0.0.9", "fd00::1", "10.0.0", ""]),
            &mut problems,
        );
        assert_eq!(
            problems.to_string(),
            "spec.reservedCIDRs[3]: \"10.0.0\" is neither a prefix nor an address; \
             spec.reservedCIDRs[4]: \"\" is neither a prefix nor an address"
        );
    }

    #[test]
    fn a_long_list_is_cut_off_in_the_table() {
        let long: Vec<&str> = vec!["10.0.0.0/30"; 20];
        let row = IpReservationSpec::row(&reservation(&long), true, &TableContext::elsewhere());
        assert!(row[1].ends_with("...") && row[1].chars().count() == 83, "{row:?}");
    }
}
