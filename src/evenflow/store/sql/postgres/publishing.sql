-- name: publish_tasks
-- returns: task
-- What SQL may enqueue, and by which rules (migration 0011).
insert into evenflow.published (task, rules, published_at)
select t.task, t.rules, coalesce(cast(:now as bigint), evenflow.now_us())
from jsonb_to_recordset(cast(:tasks as jsonb)) as t (task text, rules text) order by t.task
on conflict (task) do update set rules = excluded.rules, published_at = excluded.published_at
returning task;

-- name: withdraw_tasks
-- returns: task
delete from evenflow.published
where task = any (array(select value from jsonb_array_elements_text(cast(:names as jsonb))))
returning task;

-- name: list_published
-- mode: read
-- returns: task, rules, published_at
select task, rules, published_at from evenflow.published order by task;
