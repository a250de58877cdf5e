//! Arrays whose voters record the members in sync besides the labels: the order of votes and labels.

use std::cell::RefCell;

use braid_engine::{ErrorKind, LeafError, LeafId, MetaIo};
use braid_format::{Label, MemberState};

use super::disks::Disks;
use super::mirrors::{begin_degraded, mirror_of, new, only, raid1, states};
use super::{leaves, run};
use crate::lifecycle::{Array, LifecycleError, RebuildKind, RebuildTarget, StartOptions, create, start};
use MemberState::{Failed, InSync, Rebuilding as BeingFilled};

/// Disks with voters, which check every label that is written.
struct Voted<'a> {
    disks: &'a Disks,
    agreed: RefCell<Vec<u16>>,
    requests: RefCell<Vec<Vec<u16>>>,
    /// Members that do not take their promotion.
    refusing: RefCell<Vec<u16>>,
    overruled: RefCell<bool>,
    /// What was written although it must not be.
    wrong: RefCell<Vec<String>>,
}

fn in_sync(label: &Label) -> Vec<u16> {
    let entries = label.array.members.iter().zip(0..);
    entries.filter(|(entry, _)| entry.state == InSync).map(|(_, role)| role).collect()
}

impl<'a> Voted<'a> {
    fn new(disks: &'a Disks, agreed: &[u16]) -> Voted<'a> {
        Voted {
            disks,
            agreed: RefCell::new(agreed.to_vec()),
            requests: RefCell::default(),
            refusing: RefCell::default(),
            overruled: RefCell::new(false),
            wrong: RefCell::default(),
        }
    }

    fn requests(&self) -> Vec<Vec<u16>> {
        self.requests.take()
    }

    fn must_hold(&self) -> Result<(), String> {
        self.wrong.take().into_iter().next().map_or(Ok(()), Err)
    }
}

impl MetaIo for Voted<'_> {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.disks.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.disks.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        if let Ok(label) = Label::decode(&data) {
            let says = in_sync(&label);
            let missing = self.agreed.borrow().iter().any(|role| !says.contains(role));
            if missing || *self.overruled.borrow() {
                let agreed = self.agreed.borrow();
                self.wrong.borrow_mut().push(format!("{leaf:?} bears {says:?}, agreed on was {agreed:?}"));
            }
        }
        self.disks.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.disks.flush(leaf).await
    }

    async fn record_in_sync(&self, in_sync_now: &[u16]) -> Result<Vec<u16>, LeafError> {
        if *self.overruled.borrow() {
            return Err(LeafError::of(ErrorKind::Gone));
        }
        self.requests.borrow_mut().push(in_sync_now.to_vec());
        let gained: Vec<u16> = in_sync_now.iter().copied().filter(|r| !self.agreed.borrow().contains(r)).collect();
        let leaf = |role: u16| LeafId(u32::from(role));
        for role in &gained {
            let block = self.disks.peek(leaf(*role), 0, 4096);
            let label = Label::decode(&block).expect("who is promoted bears a label");
            if !in_sync(&label).contains(role) {
                self.wrong.borrow_mut().push(format!("{role} is promoted before its own label says so"));
            }
        }
        let not_promoted: Vec<u16> = gained.into_iter().filter(|role| self.refusing.borrow().contains(role)).collect();
        *self.agreed.borrow_mut() = in_sync_now.iter().copied().filter(|role| !not_promoted.contains(role)).collect();
        Ok(not_promoted)
    }
}

fn started<'a>(disks: &'a Disks, of: &[u32], agreed: &[u16]) -> Result<(Voted<'a>, Array), LifecycleError> {
    let io = Voted::new(disks, agreed);
    let options = StartOptions { degraded: true, ..StartOptions::new(9, 9) };
    let array = run(start(&io, &only(disks, of), options))?;
    Ok((io, array))
}

fn a_failure_is_agreed_on_before_labels_record_it() -> Result<(), String> {
    let (disks, array) = mirror_of(3);
    drop(array);
    let (io, mut array) = started(&disks, &[0, 1, 2], &[0, 1, 2]).map_err(|error| error.to_string())?;
    assert_eq!(io.requests(), [vec![0, 1, 2]], "the first word of a start");
    run(array.drop_members(&io, &[1])).map_err(|error| error.to_string())?;
    assert_eq!(io.requests(), [vec![0, 2]]);
    io.must_hold()
}

#[test]
fn losses_first_and_promotions_last() {
    a_failure_is_agreed_on_before_labels_record_it().unwrap();
    let (disks, array) = mirror_of(3);
    drop(array);
    let (io, mut array) = started(&disks, &[0, 1, 2], &[0, 1, 2]).unwrap();
    run(array.drop_members(&io, &[1])).unwrap();
    let leaf = array.candidates().next().unwrap().leaf;
    io.requests();
    run(array.begin_rebuild(&io, 1, RebuildTarget::Returning { leaf }, RebuildKind::FromBitmap)).unwrap();
    assert_eq!(io.requests(), Vec::<Vec<u16>>::new(), "who is being rebuilt counts for nobody");
    run(array.promote(&io, 1)).unwrap();
    assert_eq!((io.requests(), states(&array)), (vec![vec![0, 1, 2]], vec![InSync; 3]));
    io.must_hold().unwrap();
}

#[test]
fn a_degraded_start_is_agreed_on_first() {
    let (disks, array) = mirror_of(3);
    drop(array);
    // By the voters the third member has failed, whatever its label says: its disk was not probed.
    let (io, array) = started(&disks, &[0, 1], &[0, 1, 2]).unwrap();
    assert_eq!((io.requests(), states(&array)), (vec![vec![0, 1]], vec![InSync, InSync, Failed]));
    io.must_hold().unwrap();
}

#[test]
fn a_member_that_does_not_take_its_promotion_fails_again() {
    let (disks, array) = mirror_of(2);
    drop(array);
    let mut array = begin_degraded(&disks, &[0], 4);
    let io = Voted::new(&disks, &[0]);
    run(array.begin_rebuild(&io, 1, new(2), RebuildKind::Full)).unwrap();
    assert_eq!(states(&array), [InSync, BeingFilled]);
    io.refusing.borrow_mut().push(1);
    // The member that is promoted is on the third disk. The voters check the disk with the number of the member, the
    // second one: it gets a copy of each label of the third.
    disks.copy_disk(LeafId(2), LeafId(1));
    let result = run(array.promote(&Renumbered(&io), 1));
    assert!(matches!(result, Err(LifecycleError::Slot { slot: 1, .. })), "{result:?}");
    assert_eq!(states(&array), [InSync, Failed]);
    assert_eq!(*io.agreed.borrow(), [0]);
    io.must_hold().unwrap();
}

/// Mirrors writes to the third disk to the second one.
struct Renumbered<'a>(&'a Voted<'a>);

impl MetaIo for Renumbered<'_> {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.0.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.0.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        if leaf == LeafId(2) {
            self.0.disks.write(LeafId(1), offset, data.clone(), fua).await?;
        }
        self.0.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.0.flush(leaf).await
    }

    async fn record_in_sync(&self, in_sync: &[u16]) -> Result<Vec<u16>, LeafError> {
        self.0.record_in_sync(in_sync).await
    }
}

#[test]
fn an_overruled_controller_writes_no_label() {
    let (disks, array) = mirror_of(3);
    drop(array);
    let (io, mut array) = started(&disks, &[0, 1, 2], &[0, 1, 2]).unwrap();
    *io.overruled.borrow_mut() = true;
    let result = run(array.drop_members(&io, &[1]));
    let Err(LifecycleError::BeyondTolerance { source: Some(source), .. }) = result else { panic!("{result:?}") };
    assert!(matches!(*source, LifecycleError::Fenced), "{source}");
    io.must_hold().unwrap();
}

#[test]
fn a_new_array_is_agreed_on_when_its_labels_stand() {
    let disks = Disks::new(&[3 << 20; 3]);
    let io = Voted::new(&disks, &[]);
    run(create(&io, &raid1("m", 1, leaves(3)))).unwrap();
    assert_eq!(io.requests(), [vec![0, 1, 2]]);
    io.must_hold().unwrap();
}
