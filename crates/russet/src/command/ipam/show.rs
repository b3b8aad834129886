//! `russet ipam show`: usage of pools and blocks, owners of addresses, borrowed addresses,
//! settings.

use std::net::IpAddr;

use russet_ipam::audit::Holder;
use russet_model::{Block, HandleId, IpPool, IpamConfig, KeyKind, Prefix};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::Failure;
use super::Place;
use crate::cli::Format;
use crate::cli::ipam::ShowArgs;
use crate::output;

mod usage;

use usage::{Usage, usage};

/// The `schema` of all JSON answers; it grows when a member changes its meaning.
const SCHEMA: u32 = 1;

/// Pools and blocks. Not a `Value`: that would round the sizes of IPv6 pools.
#[derive(Serialize)]
struct Pools {
    schema: u32,
    usage: Vec<Usage>,
}

/// One address that is used on another node than its block's.
#[derive(Serialize)]
struct Borrowed {
    ip: IpAddr,
    borrowing_node: String,
    block: String,
    block_owner: String,
    r#type: String,
    allocated_to: String,
}

pub async fn run(place: &Place, args: ShowArgs) -> Result<(), Failure> {
    let format = args.output.format;
    let (json, text) = if let Some(address) = args.ip {
        holder(place, address).await?
    } else if args.show_configuration {
        let config = place.allocator().config().await?;
        (output::json(&settings_json(&config)), settings_table(&config))
    } else if args.show_borrowed {
        borrowed(&blocks(place).await?)
    } else {
        let pools: Vec<IpPool> = place.allocator().pools().await?;
        let usage = usage(&pools, &blocks(place).await?, args.show_blocks);
        let wide = matches!(format, Format::Wide);
        let rows: Vec<Vec<String>> = usage.iter().map(|usage| usage.row(wide)).collect();
        let columns = Usage::HEADING.len() - usize::from(!wide);
        let text = output::table(&Usage::HEADING[..columns], &rows);
        (output::json(&Pools { schema: SCHEMA, usage }), text)
    };
    output::print(&match format {
        Format::Json => json,
        Format::Yaml => output::yaml_of_json(&json),
        Format::Table | Format::Wide => text,
    });
    Ok(())
}

/// Every readable block, in the order of the keys.
async fn blocks(place: &Place) -> Result<Vec<Block>, Failure> {
    let records = place.store.list(&Prefix::blocks(None)).await?.records;
    let mut blocks = Vec::with_capacity(records.len());
    for record in records.iter().filter(|record| matches!(record.key.kind(), KeyKind::Block(_))) {
        match Block::decode(&record.value) {
            Ok(block) => blocks.push(block),
            Err(error) => output::progress(&format!("{} is passed over: {error}", record.key)),
        }
    }
    Ok(blocks)
}

async fn holder(place: &Place, address: IpAddr) -> Result<(String, String), Failure> {
    let Some(held) = place.allocator().holder_of(address).await? else {
        let value = json!({ "schema": SCHEMA, "ip": address, "assigned": false });
        return Ok((output::json(&value), format!("{address} is not assigned\n")));
    };
    let owner = held.attribute;
    let handle = owner.handle_id.as_deref().map(HandleId::sanitized);
    let mut text = match &owner.released_at {
        Some(at) => format!("IP {address} was released at {at} and is cooling down\n"),
        None => format!("IP {address} is in use\n"),
    };
    let attributes = owner.secondary.clone().unwrap_or_default();
    text.push_str(&format!("Block: {}\nHandle: {}\n", held.block, output::visible(handle.unwrap_or("none"))));
    text.push_str(&format!("Sequence number: {}\nAttributes:\n", held.sequence_number));
    for (name, value) in &attributes {
        text.push_str(&output::visible(&format!("  {name}: {value}")));
        text.push('\n');
    }
    let value = json!({
        "schema": SCHEMA, "ip": address, "assigned": owner.released_at.is_none(), "released_at": owner.released_at,
        "block": held.block, "handle": handle, "sequence_number": held.sequence_number, "attributes": attributes,
    });
    Ok((output::json(&value), text))
}

/// Addresses whose attribute names a node other than the one of their block (calico-ipam.md section
/// 5.2).
fn borrowed(blocks: &[Block]) -> (String, String) {
    let mut found = Vec::new();
    let mut unclassified = 0;
    for block in blocks {
        let owner =
            block.affinity.as_deref().map(|owner| owner.split_once(':').map_or(owner, |(_, name)| name));
        for ordinal in 0..block.cidr.size() {
            let (Some(ip), Some(held)) = (block.cidr.address(ordinal), block.attribute(ordinal)) else {
                continue;
            };
            let holder = Holder::of(held);
            match holder.node.as_deref() {
                None => unclassified += 1,
                Some(node) if Some(node) == owner => {}
                Some(node) => found.push(Borrowed {
                    ip,
                    borrowing_node: node.to_owned(),
                    block: block.cidr.to_string(),
                    block_owner: owner.unwrap_or("-").to_owned(),
                    r#type: held
                        .get("type")
                        .unwrap_or(if holder.pod.is_some() { "Pod" } else { "-" })
                        .to_owned(),
                    allocated_to: allocated_to(&holder),
                }),
            }
        }
    }
    let row = |b: &Borrowed| {
        let cells = [&b.borrowing_node, &b.block, &b.block_owner, &b.r#type, &b.allocated_to];
        std::iter::once(b.ip.to_string()).chain(cells.map(Clone::clone)).collect()
    };
    let heading = ["IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO"];
    let mut text = output::table(&heading, &found.iter().map(row).collect::<Vec<Vec<_>>>());
    if unclassified > 0 {
        text.push_str(&format!("{unclassified} addresses name no node\n"));
    }
    (output::json(&json!({ "schema": SCHEMA, "borrowed": found, "unclassified": unclassified })), text)
}

fn allocated_to(holder: &Holder) -> String {
    match (&holder.namespace, &holder.pod, &holder.handle) {
        (Some(namespace), Some(pod), _) => format!("{namespace}/{pod}"),
        (None, Some(pod), _) => pod.clone(),
        (_, None, handle) => handle.clone().unwrap_or_else(|| "-".to_owned()),
    }
}

/// The settings under calicoctl's names.
fn settings(config: &IpamConfig) -> Vec<(&'static str, Value)> {
    vec![
        ("StrictAffinity", config.strict_affinity.into()),
        ("AutoAllocateBlocks", config.auto_allocate_blocks.into()),
        ("MaxBlocksPerHost", config.max_blocks_per_host.into()),
        ("IPCooldownSeconds", config.ip_cooldown_seconds.into()),
    ]
}

/// The settings for people; also the last output of `configure`.
pub fn settings_table(config: &IpamConfig) -> String {
    let row = |(name, value): (&str, Value)| vec![name.to_owned(), value.to_string()];
    output::table(&["PROPERTY", "VALUE"], &settings(config).into_iter().map(row).collect::<Vec<_>>())
}

fn settings_json(config: &IpamConfig) -> Value {
    json!({
        "schema": SCHEMA,
        "strict_affinity": config.strict_affinity,
        "auto_allocate_blocks": config.auto_allocate_blocks,
        "max_blocks_per_host": config.max_blocks_per_host,
        "effective_blocks_per_host": config.block_limit(0),
        "ip_cooldown_seconds": config.ip_cooldown_seconds,
    })
}
