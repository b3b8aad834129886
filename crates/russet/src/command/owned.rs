//! `russet owned`.

use russet_agent::Paths;
use serde::Serialize;

use super::Failure;
use crate::cli::owned::OwnedArgs;
use crate::output;
use crate::owned::{self, Object};

/// The objects, for programs.
#[derive(Serialize)]
struct OwnedReport {
    schema: u32,
    objects: Vec<Object>,
}

pub fn run(args: OwnedArgs) -> Result<(), Failure> {
    let objects = owned::look(&args.root, !args.files_only)?.objects(&Paths::new(&args.root));
    let report = OwnedReport { schema: 1, objects };
    output::print_as(args.output.format, &report, || {
        if report.objects.is_empty() {
            return "Russet has nothing on this node\n".to_owned();
        }
        let row = |it: &Object| vec![it.kind.to_owned(), it.name.clone(), it.detail.clone()];
        output::table(&["KIND", "NAME", "FOR"], &report.objects.iter().map(row).collect::<Vec<_>>())
    });
    Ok(())
}
