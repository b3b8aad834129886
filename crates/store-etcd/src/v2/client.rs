//! Requests to the cluster: tries one member after another within a deadline, and never repeats a
//! request that must not be executed twice.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::backoff;
use crate::failure::{Effect, Failure};
use crate::v2::answer::Reply;
use crate::v2::http::{Members, Opened, Question};
use crate::{Reach, Settings, SettingsError};

/// A repeatable request gives up on a silent member after this fraction of its deadline, so that
/// another member can still answer in time.
const PATIENCE_PARTS: u32 = 3;

/// The state that all clones of an engine share.
pub(crate) struct Client {
    pub(crate) settings: Settings,
    pub(crate) members: Members,
    pub(crate) reach: Reach,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let members = Members::new(&settings)?;
        Ok(Self { settings, members, reach: Reach::default() })
    }

    /// How long a member may be silent before a repeatable request is sent to another one.
    pub(crate) fn member_timeout(&self) -> Duration {
        self.settings.deadline / PATIENCE_PARTS
    }

    /// Asks one member after another until one answers, the deadline passes, or the request must
    /// not be repeated.
    pub(crate) async fn call(&self, effect: Effect, question: &Question) -> Result<Reply, Failure> {
        self.call_for(effect, question, Reply::read).await
    }

    /// Like [`call`](Self::call), for answers that are no records; `read` parses endpoint, status,
    /// index and body.
    pub(crate) async fn call_for<T>(
        &self,
        effect: Effect,
        question: &Question,
        read: impl Fn(&str, u16, u64, &[u8]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + self.settings.deadline;
        let mut backoff = backoff();
        let mut unknown = false;
        for tries in 1.. {
            let turn = self.members.turn();
            let mut failure = match self.attempt(effect, deadline, turn, question, &read).await {
                Ok(reply) => {
                    self.reach.answered();
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            self.reach.failed(&failure);
            tracing::debug!(error = %failure.error, "etcd v2 member left");
            self.members.leave(turn);
            failure.after_unknown = unknown;
            unknown |= failure.class == crate::failure::Class::Ambiguous;
            if !failure.class.worth_another_try(effect) {
                return Err(failure);
            }
            // Another member is tried at once; a pause is useful only after all members were tried.
            let pause = if tries % self.members.count() == 0 { backoff.pause() } else { Duration::ZERO };
            if Instant::now() + pause >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
        }
        Err(Failure::unreachable("etcd", "no member was asked"))
    }

    /// One attempt at one member. The body may take as long as data keeps arriving: a listing of a
    /// large store takes seconds.
    async fn attempt<T>(
        &self,
        effect: Effect,
        deadline: Instant,
        turn: usize,
        question: &Question,
        read: &impl Fn(&str, u16, u64, &[u8]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // A request that must not be repeated is waited for until the deadline: giving up early
        // would only make its outcome unknown.
        let until = match effect {
            _ if question.large => deadline,
            Effect::Once => deadline,
            Effect::Read | Effect::Idempotent => deadline.min(Instant::now() + self.member_timeout()),
        };
        let opened = self.ask(turn, until, question).await?;
        let (status, index) = (opened.status, opened.index);
        let body = self.members.finish(turn, opened, self.member_timeout()).await?;
        read(self.members.endpoint(turn), status, index, &body)
    }

    /// Sends a request to one member and waits for the head of its answer.
    pub(crate) async fn ask(
        &self,
        turn: usize,
        until: Instant,
        question: &Question,
    ) -> Result<Opened, Failure> {
        let begun = Instant::now();
        match tokio::time::timeout_at(until, self.members.ask(&self.settings, turn, question)).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::silence(self.members.endpoint(turn), begun.elapsed())),
        }
    }
}
