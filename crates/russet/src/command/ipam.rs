//! `russet ipam`: the addresses of the store that the node's settings name, for operators. One module a verb.

mod check;
mod configure;
mod release;
mod show;

use std::process::ExitCode;
use std::rc::Rc;

use russet_agent::{Opened, StoreLocation};
use russet_ipam::{Allocator, SystemClock};
use russet_store::{Remote, Store};

use super::{Failure, runtime};
use crate::cli::ipam::{IpamArgs, IpamVerb, StoreChoice};
use crate::settings;

/// The store, for as long as one verb takes.
struct Place {
    store: Rc<dyn Store>,
    /// Holds the store's lock when nobody else owns it.
    _opened: Option<Opened>,
}

/// There is no store where one was to be looked at.
#[derive(Debug, thiserror::Error)]
#[error("there is no store at {0}; is --root right, and --store?")]
struct NoStore(String);

/// Runs one verb.
pub fn run(args: IpamArgs) -> Result<ExitCode, Failure> {
    runtime()?.block_on(async {
        let place = Place::open(args.place).await?;
        match args.verb {
            IpamVerb::Show(args) => show::run(&place, args).await.map(|()| ExitCode::SUCCESS),
            IpamVerb::Check(args) => check::run(&place, args).await,
            IpamVerb::Release(args) => release::run(&place, args).await,
            IpamVerb::Configure(args) => configure::run(&place, args).await.map(|()| ExitCode::SUCCESS),
        }
    })
}

// === impl Place ===

impl Place {
    async fn open(choice: StoreChoice) -> Result<Self, Failure> {
        let (paths, location) = settings::store(choice.root, choice.store)?;
        match location {
            StoreLocation::Unix(path) => Ok(Self { store: Rc::new(Remote::connect(path)), _opened: None }),
            // Whoever looks must not leave an empty store behind.
            StoreLocation::Embedded if !paths.state_dir().exists() => {
                Err(NoStore(paths.state_dir().display().to_string()).into())
            }
            StoreLocation::Embedded => {
                let opened = russet_agent::open_local(&paths).await?;
                Ok(Self { store: opened.store.clone(), _opened: Some(opened) })
            }
        }
    }

    /// An allocator over the store, as peers' tools have it: it remembers nothing.
    fn allocator(&self) -> Allocator {
        Allocator::new(self.store.clone(), Rc::new(SystemClock))
    }
}
