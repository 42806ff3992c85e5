-- All that the worker may do: four functions of the queue, and the supervisors and handlers that payloads may name. It
-- has no right to any table, and may not enqueue. The generated migration of comms.send_sms has granted its four.

grant usage on schema queues, internal, accounts, files, learning, comms to worker_service_user;

grant execute on function
    queues.dequeue_next_available_task(), queues.complete_task(uuid), queues.fail_task(uuid, text),
    internal.run_function(text, jsonb)
to worker_service_user;

grant execute on function
    comms.send_email_supervisor(jsonb),
    comms.get_email_payload(jsonb), comms.record_email_success(jsonb), comms.record_email_failure(jsonb),
    files.file_deletion_supervisor(jsonb),
    files.get_file_delete_payload(jsonb), files.record_file_delete_success(jsonb),
    files.record_file_delete_failure(jsonb),
    accounts.account_deletion_supervisor(jsonb),
    accounts.account_anonymization_supervisor(jsonb), accounts.run_account_anonymization(jsonb)
to worker_service_user;
