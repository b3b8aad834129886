//! The ways in which an agent gets its settings. Its plugins, and commands on its node, get none of
//! them.

use std::fmt::Write as _;

use russet_testkit::Random;

use crate::node::TestNode;

/// The source of an agent's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Configured {
    Flags,
    Environment,
    File,
}

// === impl Configured ===

impl Configured {
    pub const ALL: [Self; 3] = [Self::Flags, Self::Environment, Self::File];

    /// One for each node of a random test; neighbours have different ones.
    pub fn from_seed(seed: u64, node: usize) -> Self {
        let first = Random::of_thread(seed, 0xc0f1).below(Self::ALL.len());
        Self::ALL[(first + node) % Self::ALL.len()]
    }

    /// Passes settings to the agents that are started from now on, by the keys of the settings
    /// file.
    pub fn give(self, node: &mut TestNode, settings: &[(&str, &str)]) {
        let names_the_node = settings.iter().any(|(key, _)| *key == "node_name");
        node.is_named |= names_the_node && self != Self::Flags;
        for (key, value) in settings {
            match self {
                Self::Flags => {
                    node.agent_args.push(format!("--{}", key.replace('_', "-")));
                    node.agent_args.extend((*value != "true").then(|| (*value).to_owned()));
                }
                Self::Environment => {
                    node.agent_env.push((format!("RUSSET_{}", key.to_uppercase()), (*value).to_owned()));
                }
                Self::File => add_to_file(node, key, value),
            }
        }
    }
}

fn add_to_file(node: &TestNode, key: &str, value: &str) {
    let path = node.path("etc/russet/russet.toml");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut text = std::fs::read_to_string(&path).unwrap_or_default();
    let value = if value == "true" { value.to_owned() } else { format!("{value:?}") };
    writeln!(text, "{key} = {value}").unwrap();
    std::fs::write(&path, text).unwrap();
}
