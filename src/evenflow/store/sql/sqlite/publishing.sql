-- name: publish_tasks
-- returns: task
insert into evenflow_published (task, rules, published_at)
select value ->> 'task', value ->> 'rules', :now from json_each(:tasks) where true
on conflict (task) do update set rules = excluded.rules, published_at = excluded.published_at
returning task;

-- name: withdraw_tasks
-- returns: task
delete from evenflow_published where task in (select value from json_each(:names))
returning task;

-- name: list_published
-- mode: read
-- returns: task, rules, published_at
select task, rules, published_at from evenflow_published order by task;
