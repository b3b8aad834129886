//! Records which arguments came from `RUSSET_*` variables. Messages name where a setting comes
//! from, and the agent records it.

use std::collections::BTreeSet;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// The arguments whose values came from variables. Must be the first member of its struct: clap
/// removes values from the matches in the order of the members, and a removed value has no source
/// any more.
#[derive(Debug, Default, Clone)]
pub struct Variables(BTreeSet<String>);

// === impl Variables ===

impl Variables {
    /// Whether the argument called `id` came from its variable.
    pub fn contains(&self, id: &str) -> bool {
        self.0.contains(id)
    }
}

impl FromArgMatches for Variables {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_variable =
            |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::EnvVariable);
        Ok(Self(matches.ids().filter(is_variable).map(ToString::to_string).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Variables {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
