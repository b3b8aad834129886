//! `russet kube check`: what of other networks stands in Russet's way (kubernetes.md section 5.6).

mod cluster;
mod node;

use std::path::PathBuf;
use std::process::ExitCode;

use russet_agent::StoreLocation;
use russet_kube::Client;
use serde::Serialize;

use super::{FAILED, Failure, PROBLEMS, runtime};
use crate::cli::kube::{KubeArgs, KubeVerb};
use crate::output;

/// What was found, for programs.
#[derive(Debug, Default, Serialize)]
struct CheckReport {
    schema: u32,
    /// `node`, `cluster`.
    looked_at: Vec<&'static str>,
    findings: Vec<Finding>,
    /// What could not be looked at, and why.
    unknown: Vec<String>,
}

/// One thing that stands in the way.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Finding {
    kind: FindingKind,
    /// The file or the object.
    subject: String,
    /// What follows from it.
    problem: String,
    /// What to do about it.
    remedy: String,
}

#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum FindingKind {
    ConflistOrder,
    HostLocal,
    ExpiredToken,
    OtherNetwork,
    Operator,
    ApiService,
    HandleNames,
}

/// A store that is not the Kubernetes API.
#[derive(Debug, thiserror::Error)]
#[error("a cluster is named by kubernetes:FILE or kubernetes:in-cluster, not {0}")]
struct NotKubernetes(StoreLocation);

/// Runs a verb of `russet kube`.
pub fn run(args: KubeArgs) -> Result<ExitCode, Failure> {
    let KubeVerb::Check(args) = args.verb;
    let mut report = CheckReport { schema: 1, looked_at: vec!["node"], ..CheckReport::default() };
    let under = |path: PathBuf| args.root.join(path.strip_prefix("/").unwrap_or(&path));
    node::look(&under(args.cni_conf_dir.clone()), &under(node::HOST_LOCAL.into()), &mut report);
    match &args.store {
        Some(StoreLocation::Kubernetes(location)) => {
            let client = Client::new(location.source())?;
            runtime()?.block_on(cluster::look(&client, &mut report));
            report.looked_at.push("cluster");
        }
        Some(other) => return Err(NotKubernetes(other.clone()).into()),
        None => {}
    }
    output::print_as(args.output.format, &report, || report.text());
    Ok(match report {
        CheckReport { findings, .. } if !findings.is_empty() => ExitCode::from(PROBLEMS),
        CheckReport { unknown, .. } if !unknown.is_empty() => ExitCode::from(FAILED),
        _ => ExitCode::SUCCESS,
    })
}

// === impl CheckReport ===

impl CheckReport {
    fn found(&mut self, kind: FindingKind, subject: String, problem: String, remedy: &str) {
        self.findings.push(Finding { kind, subject, problem, remedy: remedy.to_owned() });
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        for Finding { subject, problem, remedy, .. } in &self.findings {
            lines.push(format!("{}: {}", output::visible(subject), output::visible(problem)));
            lines.push(format!("  {}", output::visible(remedy)));
        }
        lines.extend(self.unknown.iter().map(|line| format!("not looked at: {}", output::visible(line))));
        let looked = self.looked_at.join(" and ");
        lines.push(match self.findings.len() {
            0 => format!("nothing found that stands in Russet's way (looked at: {looked})"),
            count => format!("{count} findings (looked at: {looked})"),
        });
        if !self.looked_at.contains(&"cluster") {
            lines.push("the cluster was not looked at: give --store kubernetes:FILE".to_owned());
        }
        lines.join("\n") + "\n"
    }
}
