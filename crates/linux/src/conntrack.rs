//! How full the kernel's table of tracked connections is.

use crate::sysctl;

/// The setting of the most connections that are tracked.
pub const LIMIT: &str = "net/netfilter/nf_conntrack_max";
const COUNT: &str = "net/netfilter/nf_conntrack_count";
/// The table counts as nearly full while less than this part of it is free.
const FREE_PART: u64 = 20;

/// The tracked connections of this network namespace, and how many there can be; none where nothing is tracked.
pub fn connections() -> Option<(u64, u64)> {
    let number = |name| sysctl::read(name).ok()?.parse().ok();
    Some((number(COUNT)?, number(LIMIT)?))
}

/// What follows from a table that is nearly full; none while it is not.
pub fn nearly_full((used, limit): (u64, u64)) -> Option<String> {
    (limit > 0 && used >= limit - limit / FREE_PART).then(|| {
        format!("{used} of {limit} connections are tracked, and the kernel drops the first packet of each further one when there are more")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_connections_that_is_nearly_full_is_named() {
        // policy.md P127
        assert_eq!(nearly_full((249_036, 262_144)), None);
        assert!(
            nearly_full((249_037, 262_144))
                .is_some_and(|text| text.starts_with("249037 of 262144 connections"))
        );
        assert!(nearly_full((262_144, 262_144)).is_some());
        // No limit.
        assert_eq!(nearly_full((1, 0)), None);
    }
}
