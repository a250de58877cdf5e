//! Operations on arrays.

use crate::Daemon;
use braid_api::{
    AddDisk, Array, ArrayList, Assemble, Assembled, CheckArray, CreateArray, ErrorDetail, GrowArray, Growth, ImportMd,
    Job, MdImport, MoveJournal, RemoveArrayMember, ReplaceMember,
};
use braid_server::{ArrayService, Reply};
use std::sync::Arc;

impl ArrayService for Daemon {
    fn arrays(&self) -> ArrayList {
        self.arrays.arrays()
    }

    fn create_array(self: Arc<Self>, request: CreateArray) -> Reply<Array> {
        Box::pin(async move { self.arrays.create_array(request).await })
    }

    fn array(&self, name: &str) -> Result<Array, ErrorDetail> {
        self.arrays.array(name)
    }

    fn delete_array(self: Arc<Self>, array: String, force: bool) -> Reply<Array> {
        Box::pin(async move { self.arrays.delete_array(&array, force).await })
    }

    fn rename_array(self: Arc<Self>, array: String, new_name: String) -> Reply<Array> {
        Box::pin(async move { self.arrays.rename_array(&array, &new_name).await })
    }

    fn stop_array(self: Arc<Self>, array: String, force: bool) -> Reply<Array> {
        Box::pin(async move { self.arrays.stop_array(&array, force).await })
    }

    fn fail_member(self: Arc<Self>, array: String, member: String) -> Reply<Array> {
        Box::pin(async move { self.arrays.fail_member(&array, &member).await })
    }

    fn remove_member(self: Arc<Self>, array: String, request: RemoveArrayMember) -> Reply<Array> {
        Box::pin(async move { self.arrays.remove_member(&array, request).await })
    }

    fn add_disk(self: Arc<Self>, array: String, request: AddDisk) -> Reply<(Array, Option<String>)> {
        Box::pin(async move { self.arrays.add_disk(&array, request).await })
    }

    fn grow_array(self: Arc<Self>, array: String, request: GrowArray) -> Reply<Growth> {
        Box::pin(async move { self.arrays.grow_array(&array, request).await })
    }

    fn replace_member(self: Arc<Self>, array: String, request: ReplaceMember) -> Reply<(Array, Option<String>)> {
        Box::pin(async move { self.arrays.replace_member(&array, request).await })
    }

    fn move_journal(self: Arc<Self>, array: String, request: MoveJournal) -> Reply<Array> {
        Box::pin(async move { self.arrays.move_journal(&array, request).await })
    }

    fn check_array(self: Arc<Self>, array: String, request: CheckArray) -> Reply<Job> {
        Box::pin(async move { self.arrays.check_array(&array, request).await })
    }

    fn assemble(self: Arc<Self>, request: Assemble) -> Reply<Assembled> {
        Box::pin(async move { self.arrays.assemble(request).await })
    }

    fn import_md(self: Arc<Self>, request: ImportMd) -> Reply<MdImport> {
        Box::pin(async move { self.arrays.import_md(request).await })
    }
}
