//! Replicas of volumes that are kept on several nodes, and witnesses: what this node keeps of them.
//!
//! A replica is two volumes of a pool: its data, and a companion. Its device is what of the companion stands in front of the data, the data, and the
//! rest of the companion; behind that, on no device, is the register. A witness has its register in a file. Who may use either, its
//! [`Door`] decides.

mod close;
mod create;
mod door;
mod heard;
pub mod here;
mod listen;
pub mod offered;
mod open;
mod register;
mod rollback;
mod snapshots;
mod terms;
mod view;

use super::Control;
use super::tables::OpenDisk;
use crate::daemon::state::SavedReplica;
use braid_advice::{self as advice, Case, Names, ReplicaCase};
use braid_api::{
    AskReplica, ErrorDetail, Kind, ReplicaAnswer, ReplicaPlace, ReplicaRegister, ReplicaSeating, ReplicaState,
    ReplicaVote,
};
use braid_engine::DeviceId;
use braid_engine::replica::{Answer, Ask, Refused, Register, RegisterOf, Seating, VOTERS_MAX, Vote, VoterId, Voters};
use door::Door;
use heard::Heard;
use here::Ground;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use uuid::Uuid;
pub use view::{Hears, attention};

/// Longest name of a node or pool in a list of places, in bytes.
const PLACE_LENGTH_MAX: usize = 255;
/// Most replicas and witnesses of a node.
pub const REPLICAS_MAX: usize = 1024;
/// Longest that a controller waits for an answer.
pub const ASKING_MAX: Duration = Duration::from_secs(60);

/// The device of a replica that can be used.
pub struct Standing {
    device: DeviceId,
    disks: [Arc<OpenDisk>; 2],
    ground: Ground,
}

/// A replica or witness that votes.
pub struct Ready {
    door: Arc<Door>,
    /// Writes the register.
    keeps: JoinHandle<()>,
    /// None of a witness.
    standing: Option<Standing>,
    /// When its controller was answered last.
    heard: Arc<Heard>,
}

impl Ready {
    fn new(door: Arc<Door>, keeps: JoinHandle<()>, standing: Option<Standing>) -> Ready {
        let heard = Arc::new(Heard::at_start(&door.register()));
        Ready { door, keeps, standing, heard }
    }
}

/// How a replica or witness does.
pub enum Condition {
    /// It votes.
    Ready(Ready),
    /// It does not, and why.
    Not(ReplicaState, String),
}

/// A replica or witness that the node knows.
pub struct ReplicaEntry {
    /// What is remembered of it.
    pub saved: SavedReplica,
    /// How it does.
    pub condition: Condition,
}

impl ReplicaEntry {
    /// As it is known from the state file.
    pub fn of_saved(saved: &SavedReplica) -> ReplicaEntry {
        let why = if saved.data.is_some() { "its pool does not serve" } else { "it was not looked at yet" };
        ReplicaEntry { saved: saved.clone(), condition: Condition::Not(ReplicaState::Waiting, why.to_owned()) }
    }

    fn ready(&self) -> Option<&Ready> {
        match &self.condition {
            Condition::Ready(ready) => Some(ready),
            Condition::Not(..) => None,
        }
    }

    /// Why it does not vote; nothing: it does.
    pub fn trouble(&self) -> Option<(ReplicaState, String)> {
        match &self.condition {
            Condition::Ready(ready) => ready.door.trouble().map(|trouble| trouble.shown()),
            Condition::Not(state, why) => Some((*state, why.clone())),
        }
    }
}

/// Of what the register of a replica is.
fn register_of(saved: &SavedReplica) -> RegisterOf {
    RegisterOf { volume: saved.volume, voter: VoterId(saved.voter) }
}

impl Control {
    /// Asks a voter what a controller asks, which waits so long: what comes too late is not begun.
    ///
    /// # Errors
    /// [`Kind::Fenced`] where another controller is answered; [`Kind::Inactive`] where it cannot answer.
    pub async fn ask_replica(
        &self,
        volume: &str,
        ask: AskReplica,
        limit: Duration,
    ) -> Result<ReplicaAnswer, ErrorDetail> {
        let (door, heard, name) = {
            let tables = self.read();
            let entry = tables.replica(volume)?;
            if let Some((state, why)) = entry.trouble() {
                return Err(does_not_vote(&entry.saved.name, state, &why));
            }
            let Condition::Ready(ready) = &entry.condition else {
                return Err(does_not_vote(&entry.saved.name, ReplicaState::Waiting, "it is being closed"));
            };
            let door = Arc::clone(&ready.door);
            (door, Arc::clone(&ready.heard), entry.saved.name.clone())
        };
        let understood = understand(&name, &ask)?;
        if let AskReplica::Cast { vote, places, .. } = &ask {
            self.note_voters(volume, &vote.seating, places)?;
        }
        match door.ask(understood, limit.min(ASKING_MAX)).await {
            Some(Ok(answer)) => {
                heard.note(&answer);
                let tables = self.read();
                let saved = tables.replica(volume).map(|entry| &entry.saved);
                let places = saved.map(|saved| (saved.places.clone(), saved.version)).unwrap_or_default();
                Ok(show_answer(&answer, places))
            }
            Some(Err(Refused { epoch })) => Err(fenced(&name, epoch)),
            None => {
                let message = format!(
                    "replica {name} cannot answer: it is being closed, its register cannot be written, something that it waits for takes too long, or too many ask"
                );
                Err(ErrorDetail::new(Kind::Inactive, message)
                    .with("replica", &name)
                    .remedy("try again; braid replica show says how it does"))
            }
        }
    }
}

impl Control {
    /// Remembers where the voters are of a list that is about to be voted for; durable when this returns. Older lists are not noted.
    fn note_voters(&self, volume: &str, seating: &ReplicaSeating, places: &[ReplicaPlace]) -> Result<(), ErrorDetail> {
        let before = {
            let mut tables = self.write();
            let uuid = tables.replica(volume)?.saved.volume;
            let Some(entry) = tables.replicas.get_mut(&uuid) else { return Ok(()) };
            let saved = &mut entry.saved;
            if seating.version < saved.version || seating.version == 0 {
                return Ok(());
            }
            if seating.version == saved.version {
                // Whoever noted it may not have come to the end of that.
                drop(tables);
                return self.save();
            }
            check_places(&saved.name, places)?;
            let missing =
                seating_of(seating).all().iter().any(|voter| places.iter().all(|place| place.voter != voter.0));
            if missing {
                return Err(invalid(&saved.name, "the vote goes by a list of places that was not sent with it"));
            }
            let before = (uuid, saved.version, saved.voters, std::mem::replace(&mut saved.places, places.to_vec()));
            (saved.version, saved.voters) = (seating.version, seating.voters.count_ones() as u8);
            before
        };
        self.save().inspect_err(|_| {
            let (uuid, version, voters, places) = before;
            if let Some(entry) = self.write().replicas.get_mut(&uuid) {
                (entry.saved.version, entry.saved.voters, entry.saved.places) = (version, voters, places);
            }
        })
    }
}

fn fenced(name: &str, epoch: u64) -> ErrorDetail {
    ErrorDetail::new(Kind::Fenced, format!("replica {name} answers epoch {epoch} now, and no other"))
        .with("replica", name)
        .with("epoch", epoch)
        .remedy("another controller has the volume: open it anew, with a higher epoch, if it is to be served here")
}

fn does_not_vote(name: &str, state: ReplicaState, why: &str) -> ErrorDetail {
    let (kind, case) = match state {
        ReplicaState::Lost => (Kind::Damaged, ReplicaCase::Lost),
        ReplicaState::Waiting => (Kind::Inactive, ReplicaCase::Waiting),
        _ => (Kind::Inactive, ReplicaCase::Failed),
    };
    let remedy = advice::remedy(Case::Replica(case), Names::of(name));
    ErrorDetail::new(kind, format!("replica {name} does not vote: {why}")).with("replica", name).remedy(remedy)
}

fn invalid(name: &str, why: impl Into<String>) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("replica {name}: {}", why.into())).with("replica", name)
}

fn uuid_of(name: &str, what: &str, text: &str) -> Result<Uuid, ErrorDetail> {
    let uuid = Uuid::try_parse(text).ok().filter(|uuid| !uuid.is_nil());
    uuid.ok_or_else(|| invalid(name, format!("{what} {text:?} is no UUID")))
}

/// A question as the fence takes it. What a register could not hold is refused here.
fn understand(name: &str, ask: &AskReplica) -> Result<Ask, ErrorDetail> {
    let (AskReplica::Raise { epoch, controller }
    | AskReplica::Cast { epoch, controller, .. }
    | AskReplica::Beat { epoch, controller }
    | AskReplica::Release { epoch, controller }) = ask;
    let epoch = *epoch;
    let controller = uuid_of(name, "the controller", controller)?;
    let ask = match ask {
        AskReplica::Raise { .. } => Ask::Raise { epoch, controller },
        AskReplica::Beat { .. } => Ask::Beat { epoch, controller },
        AskReplica::Release { .. } => Ask::Release { epoch, controller },
        AskReplica::Cast { vote, boot, .. } => {
            if vote.epoch != epoch || vote.sequence == 0 {
                return Err(invalid(name, "a vote is of its controller's epoch, and counts from 1"));
            }
            let boot = boot.as_deref().map(|boot| uuid_of(name, "the boot", boot)).transpose()?.unwrap_or_default();
            Ask::Cast { epoch, controller, vote: vote_of(vote), boot }
        }
    };
    let register = match ask {
        Ask::Cast { vote, boot, .. } => Register { epoch, controller, vote, boot, ..Register::default() },
        _ => {
            let vote = Vote { in_sync: Voters::first(1), seating: Seating::of(1, 1), ..Vote::default() };
            Register { epoch, controller, vote, ..Register::default() }
        }
    };
    let of = RegisterOf { volume: Uuid::max(), voter: VoterId(0) };
    if epoch == 0 || !register.stored(&of, 1).is_sound() {
        return Err(invalid(name, "a number is beyond what a register holds, or nobody, or no voter, is in sync"));
    }
    Ok(ask)
}

fn vote_of(vote: &ReplicaVote) -> Vote {
    Vote {
        epoch: vote.epoch,
        sequence: vote.sequence,
        lineage: vote.lineage,
        in_sync: Voters::from_bits(vote.in_sync),
        seating: seating_of(&vote.seating),
    }
}

/// Who votes, as the engine takes it.
pub fn seating_of(seating: &ReplicaSeating) -> Seating {
    let ReplicaSeating { version, voters, before, replicas, further } = *seating;
    let [voters, before, replicas] = [voters, before, replicas].map(Voters::from_bits);
    Seating { version, voters, before, replicas, further }
}

/// Who votes, in the API's words.
pub fn show_seating(seating: &Seating) -> ReplicaSeating {
    let Seating { version, voters, before, replicas, further } = *seating;
    ReplicaSeating { version, voters: voters.bits(), before: before.bits(), replicas: replicas.bits(), further }
}

/// A list of places that can be remembered.
fn check_places(name: &str, places: &[ReplicaPlace]) -> Result<(), ErrorDetail> {
    let numbers: BTreeSet<u8> = places.iter().map(|place| place.voter).collect();
    if numbers.len() != places.len() || numbers.iter().any(|number| usize::from(*number) >= VOTERS_MAX) {
        return Err(invalid(
            name,
            "two of the places are of one voter, or a number is beyond all that voters can have",
        ));
    }
    let length = |place: &ReplicaPlace| place.node.len().max(place.pool.as_ref().map_or(0, String::len));
    if places.iter().any(|place| length(place) > PLACE_LENGTH_MAX) {
        return Err(invalid(name, "the name of a place is too long"));
    }
    Ok(())
}

fn show_answer(answer: &Answer, (places, version): (Vec<ReplicaPlace>, u64)) -> ReplicaAnswer {
    match answer {
        Answer::Raised { before, boot } => {
            ReplicaAnswer::Raised { before: show_register(before), boot: boot.to_string(), places, version }
        }
        Answer::Cast => ReplicaAnswer::Cast,
        Answer::Alive => ReplicaAnswer::Alive,
        Answer::Released => ReplicaAnswer::Released,
    }
}

fn show_register(register: &Register) -> ReplicaRegister {
    let some = |uuid: Uuid| (!uuid.is_nil()).then(|| uuid.to_string());
    let vote = &register.vote;
    ReplicaRegister {
        epoch: register.epoch,
        controller: some(register.controller),
        released: register.released,
        vote: ReplicaVote {
            epoch: vote.epoch,
            sequence: vote.sequence,
            lineage: vote.lineage,
            in_sync: vote.in_sync.bits(),
            seating: show_seating(&vote.seating),
        },
        boot: some(register.boot),
        since: register.since,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLLER: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";

    #[test]
    fn what_no_register_could_hold_is_refused() {
        let raise = |epoch, controller: &str| AskReplica::Raise { epoch, controller: controller.to_owned() };
        let cast = |epoch, sequence, in_sync| AskReplica::Cast {
            epoch: 3,
            controller: CONTROLLER.to_owned(),
            vote: ReplicaVote {
                epoch,
                sequence,
                lineage: u64::MAX,
                in_sync,
                seating: show_seating(&Seating::of(3, 3)),
            },
            boot: None,
            places: Vec::new(),
        };
        for right in [raise(1, CONTROLLER), cast(3, 1, 0b111), cast(3, 9, 1)] {
            assert!(understand("db", &right).is_ok(), "{right:?}");
        }
        let nil = Uuid::nil().to_string();
        let wrong = [
            raise(0, CONTROLLER),
            raise(u64::MAX, CONTROLLER),
            raise(1, "x"),
            raise(1, &nil),
            cast(2, 1, 1),
            cast(3, 0, 1),
            cast(3, u64::MAX, 1),
            cast(3, 1, 0),
            cast(3, 1, 0b1000),
        ];
        for wrong in wrong {
            let error = understand("db", &wrong).expect_err("it is refused");
            assert_eq!(error.kind, Kind::InvalidArgument, "{wrong:?}");
        }
    }
}
