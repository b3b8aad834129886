//! `russet ipam configure`: the settings of the cluster, by Calico's rules.

use super::super::Failure;
use super::Place;
use super::show::settings_table;
use crate::cli::ipam::ConfigureArgs;
use crate::output;

/// Changes the named settings and prints the effective ones.
pub async fn run(place: &Place, args: ConfigureArgs) -> Result<(), Failure> {
    let changed = place
        .allocator()
        .configure(|config| {
            config.strict_affinity = args.strict_affinity.unwrap_or(config.strict_affinity);
            config.max_blocks_per_host =
                args.max_blocks_per_host.map_or(config.max_blocks_per_host, u64::from);
        })
        .await?;
    if changed.before == changed.after {
        output::progress("nothing to change");
    }
    output::print(&settings_table(&changed.after));
    Ok(())
}
