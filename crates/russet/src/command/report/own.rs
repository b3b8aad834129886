//! Parts that this process reads and chooses from.

use std::fs;
use std::path::Path;

use super::Node;
use super::redact::REMOVED;
use crate::settings;

/// What is read of a settings file.
const FILE_MAX_BYTES: u64 = 1024 * 1024;
/// What of a process is for others to see: never its arguments or variables.
const PROCESS_FILES: [&str; 4] = ["status", "limits", "cgroup", "oom_score_adj"];

/// The record of the node's last agent, which has no secrets.
pub fn recorded_settings(node: &Node) -> Result<String, String> {
    known_settings(&node.paths.settings_record(), &["schema", "origin", "etcd_password_place"])
}

/// The operator's settings, as far as there are such.
pub fn settings_file(node: &Node) -> Result<String, String> {
    known_settings(&node.paths.settings_file(), &[])
}

/// The settings whose names are known: a mistyped name may have any value.
fn known_settings(path: &Path, others: &[&str]) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let size = fs::metadata(path).map_err(|error| failed(&error))?.len();
    if size > FILE_MAX_BYTES {
        return Err(failed(&format!("it has {size} bytes, which no settings have")));
    }
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    // The error of the parser would show the line.
    let mut table: toml::Table =
        text.parse().map_err(|_| failed(&"it is not TOML; `russet doctor` shows where"))?;
    let known = settings::keys();
    for (name, value) in &mut table {
        if !known.contains(name) && !others.contains(&name.as_str()) {
            *value = toml::Value::String(REMOVED.to_owned());
        }
    }
    Ok(table.to_string())
}

/// What the kernel says of the agent's process.
pub fn agent_process(node: &Node) -> Result<String, String> {
    let Some(pid) = node.agent_pid else { return Err("no agent answers at its socket".to_owned()) };
    let mut text = format!("pid {pid}\n");
    for file in PROCESS_FILES {
        let path = Path::new("/proc").join(pid.to_string()).join(file);
        match fs::read_to_string(&path) {
            Ok(found) => text += &format!("\n{}:\n{found}", path.display()),
            Err(error) => text += &format!("\n{}: {error}\n", path.display()),
        }
    }
    Ok(text)
}
