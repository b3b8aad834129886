//! The manifests in packaging/kubernetes, rendered from the chart beside them: one source for `kubectl apply` and for Helm.
//!
//! The renderer knows what the chart uses of Helm's language: values, `quote`, `indent`, `toYaml`, and `if` with `eq`, `ne` and `not`. A test compares it with Helm itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

/// Below the workspace.
const DIRECTORY: &str = "packaging/kubernetes";
const HEADING: &str = "# Made by `cargo xtask gen` from the chart beside this file: change that. docs/kubernetes.md says how to use it.\n";
/// The chart's templates, in the order in which objects are created.
const TEMPLATES: [&str; 8] =
    ["namespace", "config", "rbac", "policies", "flowcontrol", "flannel", "agent", "controller"];

/// A file with manifests, and how it differs from the chart's default.
struct Rendered {
    file: &'static str,
    namespace: &'static str,
    templates: &'static [&'static str],
    /// Begins with the definitions of Calico's kinds: no other file is needed.
    definitions: bool,
    /// Names with dots, and values.
    values: &'static [(&'static str, &'static str)],
}

const RENDERED: [Rendered; 4] = [
    Rendered {
        file: "russet.yaml",
        namespace: "russet-system",
        templates: &TEMPLATES,
        definitions: true,
        values: &[],
    },
    Rendered {
        file: "russet-flannel.yaml",
        namespace: "kube-flannel",
        templates: &TEMPLATES,
        definitions: false,
        values: &[("mode", "flannel")],
    },
    Rendered {
        file: "russet-calico.yaml",
        namespace: "russet-system",
        templates: &TEMPLATES,
        definitions: false,
        values: &[("mode", "calico")],
    },
    Rendered {
        file: "russet-uninstall.yaml",
        namespace: "russet-system",
        templates: &["namespace", "uninstall"],
        definitions: false,
        values: &[("uninstall", "true")],
    },
];

/// Part of a template.
#[derive(Debug)]
enum Part {
    Text(String),
    Print(String),
    If { condition: String, then: Vec<Part>, otherwise: Vec<Part> },
}

/// A block of a template whose end has not been read.
#[derive(Default)]
struct Block {
    condition: String,
    parts: Vec<Part>,
    /// After `else`.
    then: Option<Vec<Part>>,
}

/// What a template can name.
struct Scope {
    values: Value,
    namespace: &'static str,
}

/// The files' paths below the workspace, with what they have to contain.
pub fn files(root: &Path) -> Result<BTreeMap<String, String>, String> {
    let chart = root.join(DIRECTORY).join("chart");
    let values: Value =
        serde_saphyr::from_str(&read(&chart.join("values.yaml"))?).map_err(|e| e.to_string())?;
    let mut files = BTreeMap::new();
    for rendered in &RENDERED {
        let mut scope = Scope { values: values.clone(), namespace: rendered.namespace };
        for (name, value) in rendered.values.iter().chain([&("createNamespace", "true")]) {
            scope.set(name, value);
        }
        let mut text = HEADING.to_owned();
        if rendered.definitions {
            text.push_str(&definitions(&root.join(DIRECTORY).join("crds"))?);
        }
        for template in rendered.templates {
            let source = read(&chart.join(format!("templates/{template}.yaml")))?;
            let objects = scope.render(&source).map_err(|why| format!("{template}.yaml: {why}"))?;
            if !objects.trim().is_empty() {
                let _ = write!(text, "---\n{}\n", objects.trim());
            }
        }
        files.insert(format!("{DIRECTORY}/{}", rendered.file), text);
    }
    Ok(files)
}

fn definitions(directory: &Path) -> Result<String, String> {
    let entries =
        std::fs::read_dir(directory).map_err(|error| format!("list {}: {error}", directory.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.iter().map(|file| Ok(format!("---\n{}\n", read(file)?.trim()))).collect()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))
}

/// Splits a template. `{{-` removes the white space before it.
fn parse(source: &str) -> Result<Vec<Part>, String> {
    // The innermost block is last; the first is the template itself.
    let mut open = vec![Block::default()];
    let mut rest = source;
    loop {
        let (text, after) = rest.split_once("{{").map_or((rest, None), |(text, after)| (text, Some(after)));
        let trims = after.is_some_and(|after| after.starts_with('-'));
        let text = if trims { text.trim_end() } else { text };
        push(&mut open, Part::Text(text.to_owned()));
        let Some(after) = after else { break };
        let (action, next) = after.split_once("}}").ok_or("an action without its end")?;
        let action = action.trim_start_matches('-').trim();
        if let Some(condition) = action.strip_prefix("if ") {
            open.push(Block { condition: condition.to_owned(), ..Block::default() });
        } else if action == "else" {
            let block = open.last_mut().ok_or("else without if")?;
            block.then = Some(std::mem::take(&mut block.parts));
        } else if action == "end" {
            let Block { condition, parts, then } = open.pop().ok_or("end without if")?;
            let (then, otherwise) = match then {
                Some(then) => (then, parts),
                None => (parts, Vec::new()),
            };
            push(&mut open, Part::If { condition, then, otherwise });
        } else {
            push(&mut open, Part::Print(action.to_owned()));
        }
        rest = next;
    }
    match (open.pop(), open.is_empty()) {
        (Some(block), true) => Ok(block.parts),
        _ => Err("if without end".to_owned()),
    }
}

fn push(open: &mut [Block], part: Part) {
    if let Some(block) = open.last_mut() {
        block.parts.push(part);
    }
}

/// A value as Helm's `toYaml` writes it: names in order.
fn to_yaml(value: &Value, indent: usize, text: &mut String) {
    let Some(members) = value.as_object() else { return };
    for (name, value) in members.iter().collect::<BTreeMap<_, _>>() {
        let _ = write!(text, "{:indent$}{name}:", "");
        if value.is_object() {
            text.push('\n');
            to_yaml(value, indent + 2, text);
        } else {
            let _ = writeln!(text, " {}", plain(value));
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false)) && value != "" && value != 0
}

// === impl Scope ===

impl Scope {
    fn set(&mut self, name: &str, value: &str) {
        let value = if value == "true" { Value::Bool(true) } else { Value::from(value) };
        self.values[name] = value;
    }

    fn render(&self, source: &str) -> Result<String, String> {
        let mut text = String::new();
        self.write(&parse(source)?, &mut text)?;
        Ok(text)
    }

    fn write(&self, parts: &[Part], text: &mut String) -> Result<(), String> {
        for part in parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Print(action) => text.push_str(&self.print(action)?),
                Part::If { condition, then, otherwise } => {
                    self.write(if self.holds(condition)? { then } else { otherwise }, text)?;
                }
            }
        }
        Ok(())
    }

    fn holds(&self, condition: &str) -> Result<bool, String> {
        let words: Vec<&str> = condition.split_whitespace().collect();
        match words.as_slice() {
            [name] => Ok(is_true(&self.value(name)?)),
            ["not", name] => Ok(!is_true(&self.value(name)?)),
            [comparison @ ("eq" | "ne"), name, literal] => {
                let is_equal = plain(&self.value(name)?) == literal.trim_matches('"');
                Ok(is_equal == (*comparison == "eq"))
            }
            _ => Err(format!("a condition that only Helm knows: {condition}")),
        }
    }

    fn print(&self, action: &str) -> Result<String, String> {
        let mut stages = action.split('|').map(str::trim);
        let first = stages.next().unwrap_or_default();
        let mut text = match first.strip_prefix("toYaml ") {
            Some(name) => {
                let mut text = String::new();
                to_yaml(&self.value(name.trim())?, 0, &mut text);
                text.trim_end().to_owned()
            }
            None => plain(&self.value(first)?),
        };
        for stage in stages {
            text = match stage.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["quote"] => Value::from(text).to_string(),
                ["indent", width] => {
                    let width = width.parse().map_err(|_| format!("no width: {stage}"))?;
                    let indented = text.lines().map(|line| format!("{:width$}{line}", ""));
                    indented.collect::<Vec<_>>().join("\n")
                }
                _ => return Err(format!("a function that only Helm knows: {stage}")),
            };
        }
        Ok(text)
    }

    fn value(&self, name: &str) -> Result<Value, String> {
        if name == ".Release.Namespace" {
            return Ok(Value::from(self.namespace));
        }
        let path =
            name.strip_prefix(".Values").ok_or_else(|| format!("a name that only Helm knows: {name}"))?;
        self.values.pointer(&path.replace('.', "/")).cloned().ok_or_else(|| format!("no value {name}"))
    }
}
