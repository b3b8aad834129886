//! The kinds of resources that the verbs know, and what each has of its own. A new kind is one more file beside this one and one more line
//! in each list here.

use std::time::SystemTime;

use russet_model::{Resource, ResourceKind, Spec};

use super::Problems;
use super::fields::Field;
use crate::cli::unknown::instead_of_kind;

/// A kind of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// IPPool.
    Pool,
    /// IPReservation.
    Reservation,
    /// Node.
    Node,
    /// Profile.
    Profile,
    /// WorkloadEndpoint.
    Endpoint,
}

/// What a table shows besides what is stored.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The time that ages are measured to.
    pub now: SystemTime,
    /// The node on which the table is printed, and what its agent says of itself.
    pub this_node: Option<(String, AgentState)>,
}

/// What a node's agent says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    /// Pods can start.
    Ready,
    /// It runs, and pods cannot start.
    NotReady,
    /// Nothing listens at its socket.
    NotRunning,
}

/// What a kind has of its own.
pub trait Definition: Spec {
    /// Its words on the command line besides kind and plural, as calicoctl has them.
    const WORDS: &'static [&'static str];
    /// What its spec may say.
    const FIELDS: &'static [Field];
    /// What its status may say; who applies it does not change it.
    const STATUS: &'static [Field];

    /// The heading of its table; more columns when `wide`.
    fn heading(wide: bool) -> &'static [&'static str];

    /// One line of its table.
    fn row(resource: &Resource<Self>, wide: bool, seen: &Surroundings) -> Vec<String>;

    /// Fills in what was left out, and finds what the API would refuse.
    fn check(resource: &mut Resource<Self>, problems: &mut Problems);

    /// The same for a change of what is stored: `new` takes over what a file need not repeat.
    fn check_change(_old: &Resource<Self>, _new: &mut Resource<Self>, _problems: &mut Problems) {}
}

/// Calls a function that is generic over the spec with the spec of a kind.
macro_rules! each_kind {
    ($kind:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        match $kind {
            $crate::resources::Kind::Pool => $function::<russet_model::IpPoolSpec>($($argument),*),
            $crate::resources::Kind::Reservation => $function::<russet_model::IpReservationSpec>($($argument),*),
            $crate::resources::Kind::Node => $function::<russet_model::NodeSpec>($($argument),*),
            $crate::resources::Kind::Profile => $function::<russet_model::ProfileSpec>($($argument),*),
            $crate::resources::Kind::Endpoint => $function::<russet_model::WorkloadEndpointSpec>($($argument),*),
        }
    };
}
pub(crate) use each_kind;

// === impl Surroundings ===

#[cfg(test)]
impl Surroundings {
    /// Those of a table that is printed on no node of the cluster.
    pub fn elsewhere() -> Self {
        Self { now: SystemTime::UNIX_EPOCH, this_node: None }
    }
}

// === impl Kind ===

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Pool, Self::Reservation, Self::Node, Self::Profile, Self::Endpoint];

    /// Its name in keys and files.
    pub fn resource(self) -> ResourceKind {
        fn of<S: Definition>() -> ResourceKind {
            S::KIND
        }
        each_kind!(self, of())
    }

    /// The kind that a file's `kind` names.
    pub fn of_file(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.resource().kind() == name)
    }

    /// Every word for it on the command line.
    fn words(self) -> Vec<String> {
        fn of<S: Definition>() -> &'static [&'static str] {
            S::WORDS
        }
        let resource = self.resource();
        let own = [resource.kind().to_lowercase(), resource.plural().to_owned()];
        own.into_iter().chain(each_kind!(self, of()).iter().map(|word| (*word).to_owned())).collect()
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.to_lowercase();
        let found = Self::ALL.into_iter().find(|kind| kind.words().contains(&wanted));
        found.ok_or_else(|| {
            if let Some(instead) = instead_of_kind(&wanted) {
                return instead.to_owned();
            }
            let known = Self::ALL.map(|kind| kind.resource().plural()).join(", ");
            format!("there are {known}; and shorter words for them, as pool, node, wep")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calicoctls_words_are_understood() {
        for (word, kind) in [
            ("ippool", Kind::Pool),
            ("IPPools", Kind::Pool),
            ("pool", Kind::Pool),
            ("ipreservations", Kind::Reservation),
            ("nodes", Kind::Node),
            ("profile", Kind::Profile),
            ("wep", Kind::Endpoint),
            ("workloadendpoints", Kind::Endpoint),
        ] {
            assert_eq!(word.parse(), Ok(kind), "{word}");
        }
        assert!("gadget".parse::<Kind>().unwrap_err().contains("ippools"));
        assert!("bgppeer".parse::<Kind>().unwrap_err().contains("BGP"));
    }

    #[test]
    fn no_word_means_two_kinds() {
        let mut words: Vec<String> = Kind::ALL.into_iter().flat_map(Kind::words).collect();
        let all = words.len();
        words.sort();
        words.dedup();
        assert_eq!(words.len(), all);
    }
}
