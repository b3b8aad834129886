//! `russet journal`: prints the agent's journal, which it reads without the agent.

use russet_agent::Paths;
use russet_journal::{self as journal, View};

use super::Failure;
use crate::cli::journal::JournalArgs;
use crate::output;

pub fn run(args: JournalArgs) -> Result<(), Failure> {
    let paths = Paths::new(args.root);
    let path = paths.journal_file();
    let view =
        journal::view(&path).map_err(|error| format!("read the journal {}: {error}", path.display()))?;
    let view = view.ok_or_else(|| {
        let agent = paths.command("agent");
        format!(
            "there is no journal at {}: no `{agent}` has run since the machine was started",
            path.display()
        )
    })?;
    output::print_as(args.output.format, &view, || text(&view));
    Ok(())
}

fn text(view: &View) -> String {
    let mut text =
        format!("{} records in {} bytes, {:?}\n\n", view.records, view.size_bytes, view.tail).to_lowercase();
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let attachment = |it: &journal::Attachment| {
        let addresses: Vec<String> = it.addresses.iter().map(ToString::to_string).collect();
        let addresses = (!addresses.is_empty()).then(|| addresses.join(","));
        let names = [it.network.clone(), it.plugin.clone(), it.container.clone(), it.ifname.clone()];
        [names.as_slice(), &[dash(&it.pod), dash(&it.host_name), dash(&addresses), it.since.clone()]].concat()
    };
    let rows: Vec<Vec<String>> = view.attachments.iter().map(attachment).collect();
    let heading = ["NETWORK", "PLUGIN", "CONTAINER", "INTERFACE", "POD", "HOST END", "ADDRESSES", "SINCE"];
    text.push_str(&output::table(&heading, &rows));
    let operation = |it: &journal::Operation| {
        let last = it.effects.last().cloned();
        let verb = serde_json::to_value(it.verb).ok().and_then(|verb| verb.as_str().map(str::to_owned));
        let names =
            [dash(&verb), it.network.clone(), it.plugin.clone(), dash(&it.container), dash(&it.ifname)];
        [names.as_slice(), &[it.began.clone(), dash(&last)]].concat()
    };
    let rows: Vec<Vec<String>> = view.unfinished.iter().map(operation).collect();
    if !rows.is_empty() {
        let heading = ["UNFINISHED", "NETWORK", "PLUGIN", "CONTAINER", "INTERFACE", "BEGAN", "LAST EFFECT"];
        text.push('\n');
        text.push_str(&output::table(&heading, &rows));
    }
    text
}
