//! `russet top`: the agent's page and its status, live in a terminal. [`model`] decides what keys and answers do, [`panes`] and [`frame`] make lines
//! of it, both pure; [`sample`] asks the agent, [`screen`] has the terminal, and this module waits for whichever comes first.

mod frame;
mod line;
mod model;
mod panes;
mod sample;
mod screen;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::future::pending;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use russet_agent::Paths;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::{Failure, PROBLEMS, runtime, status, stop_signal};
use crate::USAGE;
use crate::cli::top::TopArgs;
use crate::output;
use model::{Event, Model, Next};
use sample::{Asker, Sample};
use screen::Screen;

/// Keys that wait to be handled. The thread that reads them waits then, and more of them stay in the terminal.
const KEYS_MAX: usize = 64;
/// How often ages are drawn anew while nothing else happens.
const TICK: Duration = Duration::from_secs(1);

/// An agent reads blocks from its datastore when its page is asked for, and makes a page anew after a second: the first page after a while has none.
const CLUSTER_READ: Duration = Duration::from_millis(1500);

/// Shows the node until a key or a signal ends that, or once.
pub fn run(args: TopArgs) -> Result<ExitCode, Failure> {
    if !args.once
        && let Some(reason) = refusal(std::io::stdout().is_terminal(), std::env::var_os("TERM").as_deref())
    {
        output::error(Failure::from(reason).as_ref());
        return Ok(ExitCode::from(USAGE));
    }
    let asker = Asker::new(&Paths::new(&args.root));
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        // An agent that does not answer is reported before the terminal is taken.
        let mut sample = asker.ask(false).await?;
        if args.once && !sample.has_blocks() {
            tokio::time::sleep(CLUSTER_READ).await;
            sample = asker.ask(false).await?;
        }
        let has_problems = !status::problems(&sample.status).is_empty();
        let model = Model::new(sample, Instant::now());
        if args.once {
            output::print(&frame::text(&model));
            return Ok(if has_problems { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS });
        }
        watch(model, &asker, args.interval.0).await.map(|()| ExitCode::SUCCESS)
    });
    // A question that the agent has not answered yet would keep the process for seconds.
    runtime.shutdown_background();
    ended
}

/// Why nothing can be drawn, if so.
fn refusal(is_terminal: bool, term: Option<&OsStr>) -> Option<String> {
    if !is_terminal {
        let instead = "russet top --once prints everything once, and russet status -o json is for programs";
        return Some(format!("standard output is no terminal: {instead}"));
    }
    (term == Some(OsStr::new("dumb"))).then(|| {
        "TERM=dumb: nothing can be drawn on this terminal; russet status --watch prints line by line"
            .to_owned()
    })
}

async fn watch(mut model: Model, asker: &Asker, every: Duration) -> Result<(), Failure> {
    let stop = stop_signal()?;
    tokio::pin!(stop);
    let mut screen = Screen::open()?;
    let (sender, mut keys) = mpsc::channel(KEYS_MAX);
    screen::read_keys(sender)?;
    let mut due = interval(every);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first answer is there.
    due.tick().await;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked: Option<JoinHandle<Result<Sample, String>>> = None;
    loop {
        let (width, height) = screen.draw(&model)?;
        model.update(Event::Size(width, height), Instant::now());
        let event = tokio::select! {
            () = &mut stop => return Ok(()),
            // The sender ends with the terminal.
            key = keys.recv() => match key {
                Some(event) => event,
                None => return Ok(()),
            },
            answer = answer(&mut asked) => {
                asked = None;
                Event::Answer(Box::new(answer))
            }
            _ = due.tick(), if asked.is_none() && !model.is_paused() => Event::Due,
            _ = tick.tick() => Event::Tick,
        };
        match model.update(event, Instant::now()) {
            Next::Quit => return Ok(()),
            Next::Draw => {}
            // One question at a time; the next one is due soon.
            Next::Ask if asked.is_some() => {}
            Next::Ask => {
                let (asker, denied) = (asker.clone(), model.wants_denied());
                asked = Some(tokio::spawn(async move { asker.ask(denied).await }));
            }
        }
    }
}

/// What the agent answers; never, if it was not asked.
async fn answer(asked: &mut Option<JoinHandle<Result<Sample, String>>>) -> Result<Sample, String> {
    match asked {
        Some(handle) => handle.await.unwrap_or_else(|error| Err(error.to_string())),
        None => pending().await,
    }
}
