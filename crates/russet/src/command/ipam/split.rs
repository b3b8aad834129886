//! `russet ipam split`: replaces a pool by equal parts.

use super::super::Failure;
use super::Place;
use crate::cli::ipam::SplitArgs;
use crate::output;

/// No pool has the prefix on the command line.
#[derive(Debug, thiserror::Error)]
#[error("no pool has the prefix {cidr}; see `{show}`")]
struct NoPool {
    cidr: ipnet::IpNet,
    /// The command that lists them.
    show: String,
}

/// Splits the pool and prints the new ones.
pub async fn run(place: &Place, args: SplitArgs) -> Result<(), Failure> {
    let allocator = place.allocator();
    let name = match (args.name, args.cidr) {
        (Some(name), _) => name,
        (None, Some(cidr)) => {
            let pools = allocator.pools().await?;
            let found = pools.into_iter().find(|pool| pool.spec.cidr == cidr);
            let none = || NoPool { cidr, show: place.paths.command("ipam show") };
            found.ok_or_else(none)?.metadata.name
        }
        // The command line's parser requires one of them.
        (None, None) => return Ok(()),
    };
    let pools = allocator.split_pool(&name, args.parts).await?;
    let rows: Vec<Vec<String>> =
        pools.iter().map(|pool| vec![pool.metadata.name.clone(), pool.spec.cidr.to_string()]).collect();
    output::print(&output::table(&["POOL", "CIDR"], &rows));
    Ok(())
}
