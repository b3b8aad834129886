//! The command line of `russet map`.

use clap::{Args, ValueEnum};

use super::store::StoreChoice;

pub const EXAMPLES: &str = "Examples:
  russet map                               nodes with state and address blocks, and the links that have a problem
  russet map -o svg > map.svg              a picture for a browser, light or dark as the reader has it
  russet map -o dot | dot -Tpdf -o map.pdf
  russet map -o json

The datastore has all of it: nodes, pools, blocks, and the records that all agents leave there every minute. No agent is asked. In a cluster of more than
50 nodes the links with problems are shown, and from each node the one to the next. docs/ui.md has the members of the JSON.

Exit codes: 0 good, also if there are problems (`russet status --cluster` has exit code 3 then); 1 the datastore does not answer; 2 usage.";

#[derive(Debug, Args)]
pub struct MapArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    /// Print as a table, as a graph for Graphviz, as a picture, or as JSON or YAML for programs.
    #[arg(short = 'o', long = "output", default_value = "text", value_name = "FORMAT")]
    pub format: MapFormat,
}

/// A form of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MapFormat {
    /// For people.
    #[value(alias = "table", alias = "wide")]
    Text,
    /// For Graphviz.
    Dot,
    /// A picture.
    Svg,
    /// For programs.
    Json,
    /// The same as YAML.
    Yaml,
}
