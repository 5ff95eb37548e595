"""Which words tell talk about a marker from a claim? A language adds words here, never a rule.

`put_off` it is not time yet · `if` a condition · `will` the future · `now` takes that back · `duty` what has to be
said · `about` examples and reports · `plan` heads of what is to be done · `back` a sentence that
takes a claim back begins so · `halt` cuts in between two signs and does so, too · `undone` does so anywhere · `done`
that it is · `here` this is the claim · `performs` it is being said · `label` stands before a colon · `marker` names of
the marker itself · `no` denials · `nearly` right before a marker they take it away · `behind` right behind it they do ·
`say` and `open` a line that ends so is not over · `obeys` it is said as somebody asked for · `order` a command begins
so · `on` a sentence goes on so behind an ordinary word that was said. `*` is any ending; scripts without spaces are
looked through anywhere.
"""

LANGUAGES = {
    "en": """
put_off: not yet | yet to | still not | too early | too soon | premature* | almost | not quite | still have to
put_off: still need* | still fail* | hold off | holding off | hold* back | withhold* | withheld | refrain* | refus*
put_off: far from | away from | unable to | instead of | rather than | no reason | not allowed | no way | no need
put_off: not ready | not finished | not done | not stated | not complete | unfinished | must wait | come next
put_off: comes next | not now | no longer | a lie | missing for | my earlier | previous* | prior | half | not going
put_off: cannot | can not | do not | never | decline* | not treat | waiting
if: if | when | once | until | till | unless | whenever | as soon as | as long as | provided | in case | only after
if: before i | before the | had the | whether | by the time | upon | only then | assuming | given that
will: will | shall | would | going to | about to | plan to | plan on | intend* | might | could | want to | hope to
will: hopefully | perhaps | maybe | probably | fingers crossed
will: love to | expect* | later | tomorrow | soon | eventually | someday | becomes
now: now | hereby | at last
duty: must | should | need to | needs to | have to | has to | ought | supposed | asked | told | requir* | is to
duty: are to | in order to | to claim | to finish | to end | instruct* | the task says | the task is to | says
duty: the rules | contract | prompt | specification | to be added | to be printed | on success
about: example | e g | for instance | such as | format | template | reserved | placeholder | the string | the words
about: the phrase | grep* | contain* | explains | looks for | documented | understanding | said | wrote | quote*
about: look for | literal* | syntax | last line is | last line has | next turn | later turn | something like | either
about: stops on | ends on
about: desired | draft | actual | contents | false | or else | definition | condition | agreed on | qualif* | appears
plan: todo | to do | next step* | next up | next | remaining | remains | still open | open points | open items
plan: pending | plan | planned | missing | outstanding | steps | follow up | followups | then | afterwards
plan: backlog | blocked | blockers | checklist | not done | left to | what is left | what s left | instructions
plan: requirements | roadmap | goal | to come | failing | in progress | wip | after | at the end | reminder | to be
plan: target | final step | last step
undone: still fail* | spoke too soon | take that back | take it back | take this back | taking that back
undone: i was wrong | my mistake | not done after all | on second thought | i just saw | i just noticed | is red
undone: not finished | not true | does not count | do not count | retract that | retract this | have to retract
halt: wait | sorry
back: wait no | wait i | wait the | wait there | wait that | wait a | sorry i | sorry that | sorry no | sorry but
back: actually | take back | scratch that | disregard | retract* | withdraw that | withdraw it | withdraw my | oops
back: correction | hold on | ignore that | ignore the | looking again | overlooked | hmm | not covered | is broken
back: too early | too soon | premature | not yet
done: done | finished | complete | completed | met | pass | passes | passed | passing | green | implemented | fixed
done: verified | ready | works | work | fulfilled | satisfied | in place | confirm* | achieved | solved | resolved
done: succeeded | successful* | nothing | no errors | no open | no failing | gone | checked | no remaining
done: not a single | any more | no more | all set | good to go | compiles | builds | covered | addressed
done: everything | all | every | each | in order
here: here | now | hereby | finally | thus | therefore | hence | alone on the last
performs: i output | i print | i emit | i say | i write | i declare | i answer | i state | i confirm | i report
performs: i reply | i claim | i end | i finish | outputting | printing | emitting | declaring | answering
performs: i restate | i repeat | i conclude | i close | claiming | restating | repeating
performs: reporting | stating | i can say | i now | i can output | i can report | i can declare | i can confirm
label: status | state | result | outcome | output | answer | claim | promise | completion | verdict | conclusion
label: signal | final | response
marker: marker | last line | final line | this line | the line | string | the word | phrase | message | token
marker: wants | following line
no: not | no | never | nor
nearly: no | not | never | without | almost | nearly | half | partly | partially | mostly | non | to | toward
nearly: towards | reaching | perhaps | maybe | probably | hopefully
behind: only | when | once | if | until | till | unless | after | as soon as | yet | later | soon | provided | not
behind: would | will | should | must | cannot | can | could | except | pending | premature | wrong | false
behind: is what | to be | at the end | on the last | was | is the | is a | is reserved | means | comes | before
behind: no | but not | for the end
say: output* | emit* | print* | say | says | write | writing | written | type | reply | replying | respond*
say: return | send | answer* | declare* | claim | put | end | finish | with | is | be | append | add | include
say: use | following | as follows | reads
obeys: as instructed | as asked | as you asked | as requested | as you requested | as required | as told | as agreed
obeys: as you told me | per your instructions | per instructions | in the required form | in the form you need
obeys: with the right format | with the correct format
obeys: in the right form | in the correct form | in the right format | in the correct format | this time | the format of
order: output | emit | print | say | write | type | reply | respond | return | send | answer | end | finish
order: append | add | include | use | put | claim | declare
open: or | and | then | until | before | from | than | of | the
on: to | and | with | as | because | since | now | for | so | thanks | let
""",
    "de": """
put_off: noch nicht | noch kein* | zu früh | voreilig | verfrüht | nicht fertig | erst wenn | erst dann | erst nach
put_off: anstatt | statt | fehlt noch | irrtümlich | versehentlich
if: wenn | sobald | falls | sofern | bis | bevor | solange | erst | vorausgesetzt
will: hoffentlich | bald | vielleicht | wahrscheinlich | wäre | stünde
will: werde | wird | würde | würden | möchte | später | folgt
now: jetzt | nun | hiermit
duty: muss | soll | sollte | sollen | müsste | verlangt | laut | anweisung* | vorgabe* | aufgabenstellung | lautet
duty: darf
about: vorlage | beispiel* | z b | platzhalter | erinnerung | sieht
plan: offen | offene* | noch zu | als nächstes | nächste* | schritte | ausstehend* | zu tun | danach | anschließend
plan: zu erledigen | es fehlt | was fehlt | dann | am ende | nach
back: moment | zurück | doch nicht | stimmt nicht | ignorier* | korrektur | irrtum | zu früh | noch nicht | halt
done: fertig | erledigt | abgeschlossen | erfüllt | bestanden | grün | gelöst | umgesetzt | vollständig | laufen
done: geprüft | behoben | alle | alles | kein | keine | nichts
here: jetzt | nun | hier | hiermit | somit | daher | allein auf der letzten
performs: gebe ich | schreibe ich | melde ich | sage ich | ich melde | ich schreibe | ich gebe | ich bestätige
performs: ich erkläre | bestätige ich | erkläre ich
label: stand | endstand | ergebnis | endergebnis | fazit | ausgabe | antwort | abschluss | abschlussstatus | zustand
marker: zeile | abschlusszeile | abschlussmeldung | markierung | zeichenkette
no: nicht | kein | keine | nie
open: oder | und | dann | bis | bevor | wie
nearly: kein | keine | keinen | nicht | nie | fast | beinahe | halb
behind: nicht | erst | noch | wenn | sobald | wäre | wird | war | vorhin
say: schreib* | geschrieb* | ausgeb* | ausgabe | gebe | gib | antwort* | sage | sagen | melde* | mit | lautet
obeys: wie verlangt | wie gewünscht | wie gefordert | in der richtigen form | noch einmal | diesmal
order: schreib | schreibe | gib | antworte | beende | melde
on: aus | weil | denn | da
plan: letzter schritt | nächster schritt
""",
    "fr": """
put_off: pas encore | trop tôt | au lieu | prématuré* | pas fini | pas terminé* | il manque
if: si | quand | lorsque* | dès que | une fois | tant que | avant de | avant d | jusqu* | à condition | après
will: peut être | serait | vais | va | allons | plus tard | bientôt | sera | devrait | à écrire
now: maintenant
duty: dois | doit | devra | faut | demande* | consigne* | énoncé | attendue
about: exemple | modèle | dit | mémoire
plan: reste | restant* | prochain* | étape* | à faire | ensuite | puis | la suite | à la fin | après
back: en fait | attend* | je retire | trompé* | pas encore | trop tôt | oubliez
done: terminé* | fini | finie | achevé* | réussi* | passent | rempli* | résolu* | vérifié* | prêt | complet | complète
done: corrigé* | réparé* | généré* | ajouté* | fait | faite
done: accompli* | tout | tous | toutes | aucun* | rien | plus aucun* | il n y a plus
here: maintenant | voici | donc | seul sur la dernière
performs: j écris | je déclare | je réponds | j affiche | je confirme | je conclus
label: statut | état | résultat | sortie | réponse | conclusion | bilan | verdict
marker: ligne | marqueur | mot
no: ne | pas | jamais
nearly: pas | sans | presque
behind: viendra | pas | quand | encore | serait | sera | seulement | pour la fin
say: écri* | annonc* | dire | dis | affich* | répond* | émet* | imprim* | par | avec | est | sera
obeys: comme demandé | comme convenu | dans la bonne forme | cette fois
order: écris | écrivez | réponds | répondez | affiche | affichez | termine | terminez | finis
on: car | parce | puisque
plan: dernière étape | prochaine étape
""",
    "es": """
put_off: todavía no | aún no | aun no | todavia no | demasiado pronto | en vez de | falta | faltan | queda un*
put_off: prematur* | lejos de
if: cuando | en cuanto | una vez | hasta | mientras | antes de | apenas | siempre que | al terminar | al acabar
will: pronto | quizás | tal vez | sería | voy | vamos | luego | más tarde | será | tendré | por escribir
now: ahora | ya
duty: debo | debe | debería | hay que | tengo que | tiene que | pide | enunciado | instruc* | dice | indica
about: ejemplo | formato | dije | recordatorio
plan: pendiente* | siguiente paso | siguientes pasos | próxim* | pasos | por hacer | restante* | luego | resta
plan: entonces | al final | después
back: perdón | me adelanté
back: espera | espere | retiro | equivoqu* | corrección | en realidad | demasiado pronto | todavía no
done: terminad* | completad* | completo | completa | listo | lista | listos | cumplid* | pasan | verificad* | resuelt*
done: hech* | todo | todos | todas | nada | ningun* | ningún | no hay | no queda* | sin errores
here: ahora | aquí | por eso | por lo tanto | solo en la última
performs: escribo | respondo | declaro | confirmo | imprimo | emito | digo
label: estado | resultado | salida | respuesta | conclusión | veredicto | balance
marker: línea | marcador | palabra
no: no | nunca
nearly: sin | casi
behind: vendrá | no | solo | cuando | todavía | aún | será | sería | para el final
say: escrib* | anunci* | decir | digo | diga | respond* | imprim* | emit* | con | es | poner | pon
obeys: como se pidió | como pediste | como se me pidió | en la forma correcta | esta vez
order: escribe | escriba | responde | responda | imprime | imprima | termina | pon
on: porque | pues | ya
plan: último paso | próximo paso
""",
    "pt": """
put_off: ainda não | longe de | cedo demais | em vez de | ainda nao | muito cedo
if: quando | assim que | até | enquanto | uma vez | antes de | se tudo | se todos | se todas | se o | se os | se as
if: se der
will: vou | irei | depois | mais tarde | será | terei
now: agora
duty: devo | deve | preciso | tenho que | precisa | pede | instruç* | diz
about: exemplo | disse
plan: próxim* | pendente* | passo* | por fazer | a fazer | falta fazer | depois | em seguida | então | no fim
plan: no final | plano
back: espera | espere | retiro | me enganei | correção | na verdade | ainda não
done: concluíd* | pront* | feit* | passam | resolvid* | finalizad* | tudo | todos | todas | nada | nenhum* | não há
done: atendid* | sem erros
here: agora | aqui | portanto | por isso | sozinho na última
performs: escrevo | respondo | declaro | confirmo | imprimo | digo | concluo
label: estado | resultado | saída | resposta | conclusão | veredito | situação
marker: linha | palavra | marcador
no: não | nao | nunca
nearly: não | nao | quase | sem
behind: virá | não | quando | ainda | para o final
say: escrev* | anunci* | dizer | digo | respond* | imprim* | com
obeys: como pedido | conforme pedido | conforme solicitado | na forma correta | desta vez
order: escreva | responda | imprima | termine | diga
plan: último passo | próximo passo
""",
    "it": """
put_off: non ancora | lontan* | non è ancora | ancora non | non posso ancora | troppo presto | invece di | manca
if: quando | appena | una volta | finché | prima di | se tutt* | se i | se il | se la | solo se | soltanto se
will: presto | forse | sarebbe | sarà | dovrà | vorrei | più tardi | da scrivere
now: ora | adesso
duty: devo | deve | bisogna | istruzion* | dice di
about: esempio | ho detto | ha risposto
plan: piano | prossim* | da fare | passi | rimane | rimangono | poi | alla fine | dopo
back: anzi | correzione | aspetta* | ritiro | sbagliat* | in realtà | troppo presto
done: fatt* | finit* | passano | completat* | risolt* | verificat* | conclus* | soddisfatt* | tutt* | nessun* | nulla
done: non ci sono
here: ora | adesso | ecco | quindi | da solo sull
performs: scrivo | rispondo | dichiaro | confermo | stampo | dico
label: stato | risultato | esito | risposta | conclusione | verdetto | bilancio
marker: riga | marcatore | parola
no: non | mai
nearly: quasi | senza | niente | nessun
behind: arriverà | non | ancora | sarebbe | quando
say: scriv* | annunci* | dire | stamp* | rispond* | con
obeys: come richiesto | nella forma corretta | questa volta
order: scrivi | rispondi | stampa | termina
on: perché
plan: ultimo passo | prossimo passo
""",
    "nl": """
put_off: nog niet | nog geen | te vroeg | in plaats van
if: als alles | als alle | als de | als het | alleen als | wanneer | zodra | indien | totdat | voordat | mits
will: zal | zullen | zou | straks
now: nu
duty: moet | moeten | hoort | volgens | opdracht
about: bijvoorbeeld | voorbeeld
plan: volgende | resterend* | te doen | nog | stappen | daarna | aan het eind
back: wacht | neem terug | correctie | toch niet | nog niet
done: klaar | voltooid | slagen | afgerond | opgelost | geslaagd | voldaan | niets | geen | er zijn geen
here: nu | hier is
performs: schrijf ik | meld ik | ik meld | ik schrijf
label: resultaat | antwoord | stand | eindstand | conclusie
marker: regel | woord
no: niet | geen
nearly: geen | niet | bijna
behind: niet | pas | zou | zodra
say: schrijf* | schrijv* | antwoord* | zeg*
obeys: zoals gevraagd | in de juiste vorm | deze keer
order: schrijf | antwoord
plan: laatste stap | volgende stap
""",
    "ru": """
put_off: ещё не | еще не | пока не | ещё рано | еще рано | слишком рано | рано | вместо | не готов* | не закончен*
put_off: остался | осталась | остались | ошибочно
if: если | когда | как только | пока | после того | прежде
will: скоро | возможно | может быть
will: буду | будет | напишу | выведу | скажу | отвечу | добавлю | закончу | поставлю | позже | потом | затем | сообщу
now: теперь | сейчас
duty: должен | должна | должно | должны | надо | нужно | требу* | условию | следует | инструкци* | задани*
about: например | пример | формат | сказал | сказала | написал | напоминание
plan: план | осталось | следующий шаг | следующие шаги | шаги | далее | потом | затем | предстоит | в конце | после
back: стоп | подожд* | беру свои слова | беру назад | назад | отменя* | ошибся | ошиблась | поправка | на самом деле
back: хотя | рано | ещё не | еще не
done: готов* | выполнен* | завершен* | завершён* | пройден* | проходят | исправлен* | проверен* | все | всё | ничего
done: ни один | нет
here: теперь | вот | поэтому | один на последней
performs: вывожу | пишу | сообщаю | заявляю | подтверждаю | отвечаю
label: статус | итог* | результат | ответ | вывод | состояние | вердикт
marker: строка | строку | маркер | слово
no: не | нет
nearly: не | нет | почти | без
behind: не | далеко | нельзя | когда | если | ещё | еще | только | будет | рано | было
say: объяв* | пиш* | напис* | вывод* | вывест* | ответ* | сказ* | говор* | печат* | с
obeys: как требовалось | как вы просили | как указано | в нужной форме | на этот раз
order: напиши | напишите | выведи | выведите | ответь | ответьте
plan: последний шаг | следующий шаг
""",
    "pl": """
put_off: jeszcze nie | za wcześnie | zamiast
if: jeśli | jeżeli | gdy | kiedy | dopiero | dopóki | zanim | jak tylko
will: napiszę | będzie | będę | wypiszę | powiem | później | odpowiem
now: teraz
duty: muszę | musi | powin* | należy | trzeba | polecen* | mam wypisać
about: przykład | na przykład
plan: następn* | pozostał* | do zrobienia | kroki | potem | na końcu
back: chwila | poprawka | czekaj | cofam | pomyłka | jednak nie
done: gotow* | zakończon* | ukończon* | spełnion* | przechodzą | naprawion* | wszystk* | nic | żad* | bez błędów | brak
here: teraz | oto | dlatego
performs: wypisuję | piszę | odpowiadam | zgłaszam | potwierdzam
label: wynik | odpowiedź | stan | wniosek | podsumowanie
marker: linia | linię | znacznik
no: nie
nearly: nie | prawie | bez
behind: nie | jeszcze | dopiero | będzie
say: pisz* | napis* | wypis* | odpowied*
obeys: zgodnie z poleceniem | zgodnie z prośbą | we właściwej formie | tym razem
order: napisz | odpowiedz | wypisz
""",
    "tr": """
put_off: henüz | daha değil | çok erken | yerine
if: eğer | geçince | bitince | olunca | tamamlanınca | geçerse | olursa | geçtiğinde | bittiğinde | kadar | zaman
will: sonra | yazacak*
now: şimdi
duty: gerek* | lazım | talimat*
about: örnek
plan: kalan | sonraki | sıradaki | adımlar | yapılacak* | sonunda
back: aslında | bekle* | geri al* | düzeltme
done: tamamlandı | bitti | geçiyor | geçti | hazır | karşılandı | tüm | her şey | hiç* | kalmadı | yok
here: şimdi | işte | bu yüzden
performs: yazıyorum | bildiriyorum | onaylıyorum | ilan ediyorum | beyan ediyorum | belirtiyorum
label: durum | sonuç | yanıt
marker: satır | satırı
no: değil
nearly: neredeyse
behind: henüz | diyemem | yazamam | yazmay* | yazmıyor*
say: yaz* | söyle*
obeys: istendiği gibi | istediğiniz gibi | bu kez
order: yaz | yazın
""",
    "zh": """
put_off: 还不 | 还没 | 尚未 | 暂不 | 未完成 | 还未 | 太早 | 过早 | 没有资格 | 差一点 | 先不 | 仍未 | 仍然 | 还剩
put_off: 還沒 | 還不 | 暂时不 | 不输出 | 不写 | 不能 | 不要 | 别 | 不会 | 不应 | 无法 | 误写 | 还在
if: 如果 | 若 | 当 | 等所有 | 等到 | 等全部 | 一旦 | 只有 | 直到 | 之后 | 以后 | 完成后 | 通过后 | 完成时 | 成功后
if: 结束后 | 才能 | 才会 | 时才 | 假如 | 的时候
will: 快了 | 也许
will: 将 | 会输出 | 会写 | 会说 | 会回复 | 会在 | 打算 | 准备 | 稍后 | 以后 | 再输出 | 再写 | 再说 | 接着 | 然后
now: 现在 | 这就
duty: 必须 | 应该 | 应当 | 需要 | 要求 | 请 | 按照 | 指令 | 规定 | 须
about: 代理的 | 例如 | 比如 | 格式 | 示例 | 样例 | 刚才说 | 之前说 | 所谓 | 提醒
plan: 最后要 | 最后需要 | 最后再 | 最后输出 | 最后写 | 之后 | 接下来 | 下一步 | 待办 | 剩余 | 剩下 | 还需 | 步骤
plan: 计划 | 未完成 | 然后 | 最后一步 | 后续
back: 等等 | 收回 | 撤回 | 更正 | 不对 | 忽略 | 其实 | 取消 | 搞错 | 抱歉
done: 完成 | 通过 | 实现 | 就绪 | 完毕 | 修复 | 解决 | 没有 | 全部 | 所有 | 一切 | 无需
here: 现在 | 以下 | 所以 | 因此 | 这就 | 单独 | 特此
performs: 宣布 | 确认
label: 状态 | 结果 | 输出 | 结论 | 答案 | 回答
marker: 行 | 标记 | 字符串
no: 不 | 没
behind: 会在 | 说得太早 | 太早 | 还 | 尚 | 不 | 将 | 时 | 是什么 | 之前 | 稍后
say: 输出 | 写 | 说 | 回复 | 打印 | 回答 | 宣布 | 给出
obeys: 按要求 | 按照要求 | 按正确的格式 | 按照正确的格式 | 这一次
plan: 最后一步 | 下一步
""",
    "ja": """
put_off: まだ | 早すぎ | 時期尚早 | もう少し | 未完了 | できません | していない | しておらず | 誤って
if: もし | たら | れば | なら | とき | まで | 次第 | 場合 | 完了後 | 通過後 | 終了後 | 成功後
will: つもり | 予定 | でしょう | 後で | いずれ | やがて
now: 今 | これで
duty: べき | なければ | 必要 | ください | 指示 | 書くこと | すること | 要求 | してよい | でもよい
about: エージェントの | 例えば | 例： | 形式 | 書式 | 先ほど | メモ
plan: 計画 | 最後に | 後 | 残り | 次のステップ | 次の作業 | 次に | 手順 | 今後 | 予定 | やること | 残作業 | 次は
back: 取り消 | 撤回 | すみません | 訂正 | 待って | やはり | 実は | まだ
done: 完了 | 通りました | 終わりました | 終了 | 修正済 | 確認しました | すべて | 全て | ありません | ないので
done: はないの | 満たして
here: これで | こちら | 以下 | ので | 単独
performs: 出力します | とします | 宣言します | 報告します | 書きます
label: 結果 | 状態 | 出力 | 回答 | 結論
marker: 合図 | 行 | マーカー
no: ません | ない
behind: は最後 | 前に | とは言えません | はまだ | まだ | ません | ない | のは | 早すぎ | と書いて | と書くこと
say: 出力 | 書き | 書く | 書い | 書け | 言い | 言う | 言え | 返 | 表示 | 宣言
obeys: 指示のとおり | 指示の通り | 指示どおり | 今回は
plan: 最後のステップ | 次のステップ
""",
    "ko": """
put_off: 아직 | 너무 일찍 | 이릅 | 못했 | 못합 | 거의 | 미완료 | 너무 이르
if: 하면 | 되면 | 으면 | 나면 | 때 | 전까지 | 완료까지 | 통과까지 | 만약 | 후에 | 전에 | 이후 | 다음에
will: 예정 | 것입니다 | 나중 | 겠습니다
now: 이제 | 지금
duty: 해야 | 하세요 | 하십시오 | 지시 | 필요 | 라고 했 | 요구하 | 메모
about: 예를 | 예시 | 형식
plan: 마지막 | 후 | 남은 | 다음 | 단계 | 계획 | 할 일 | 예정
back: 잠깐 | 취소 | 철회 | 정정 | 사실은 | 아직 | 죄송
done: 완료 | 통과 | 끝났 | 해결 | 마쳤 | 충족 | 모든 | 모두 | 다 됐 | 없으므로 | 없습니다
here: 이제 | 여기 | 므로 | 단독
performs: 출력합니다 | 입니다 | 선언합니다 | 보고합니다 | 씁니다
label: 상태 | 결과 | 출력 | 답변 | 결론
marker: 줄 | 마커
no: 않 | 못
behind: 할 수 없 | 않 | 못 | 없 | 아직 | 겠 | 했습니다 | 말해도 | 쓰기
say: 출력 | 쓰 | 작성 | 말하 | 답
obeys: 요청하신 대로 | 요청대로 | 지시대로 | 이번에는
plan: 마지막 단계 | 다음 단계
""",
    "ar": """
put_off: ليس بعد | لم يكتمل | قبل الأوان | مبكر | لا يمكن | لن | لا أستطيع | ما زال | لم تنته | لم ينته
put_off: عن طريق الخطأ
if: إذا | عندما | حالما | بمجرد | حتى | متى | بعد أن | قبل أن | فور | عند | شرط
will: سوف | سأ | سيكون | سنكتب | لاحقا | لاحقًا
now: الآن
duty: يجب | المطلوب | ينبغي | لا بد | مطلوب | التعليمات | طلبت
about: مثال | مثلا | صيغة | قلت | كتبت
plan: بعد | في النهاية | المتبقي | التالي | خطة | الخطوات | ثم | الخطوة
back: انتظر | أسحب | أتراجع | تصحيح | عفوا | عفوًا | آسف | في الواقع
done: اكتمل | انتهى | انتهيت | نجح | تم | ناجحة | جميع | كل | لا يوجد | لم يبق | لا حاجة
here: الآن | هنا | لذلك | إليك
performs: أكتب | أعلن | أؤكد
label: الحالة | النتيجة | الإجابة | الخلاصة
marker: السطر | العلامة
no: لا | ليس | لم | لن
behind: بعد | قبل | ليس | لا | عن طريق
say: كتابة | أكتب | اكتب | أقول | طباعة | أطبع | إخراج
obeys: كما طلبت | كما طُلب | بالشكل الصحيح | هذه المرة
""",
    "others": """
put_off: inte ännu | ännu inte | endnu ikke | ikke ennå | ještě ne* | ще не | încă nu | még nem | vielä | chưa | belum
put_off: skriver inte | skriver ikke | en kirjoita | nepíš* | ne pišem | nu scriu | δεν γράφω | nem írom
put_off: ακόμα | ακόμη | अभी नहीं | अभी तक | नहीं | ยัง | עדיין | هنوز
if: når | när | hvis | om alla | až | pokud | když | якщо | коли | dacă | când | ha minden | kun | khi | nếu | jika
if: apabila | setelah | όταν | αν | μόλις | जब | अगर | यदि | होने पर | אם | כאשר | כש | اگر | وقتی
will: til sidst | خواهم | จะ
will: kommer att | ska | skal | vil | lopuksi | napíšu | budu | sẽ | akan | nanti | θα | लिखूँगा | אכתוב
duty: måste | skall | musím | phải | harus | चाहिए | करना है
about: exempel | eksempel | דוגמה | उदाहरण | ví dụ | contoh | ตัวอย่าง | příklad | приклад
plan: återstår | nästa | næste | další | på slutet | після | seuraava | következő | următor* | επόμεν* | הבא
plan: berikutnya | ต่อไป | अगल | tiếp theo
back: vänta | vent | počkej
done: klart | färdig* | uppfyllda | alla | allt | hotovo | všechn* | valmis | kaikki | όλα | όλες | έτοιμ* | готово
done: усі | всі | hoàn thành | tất cả | selesai | semua | minden | kész | toate | gata | सभी | पूरा | หมด | כל | הושלם
done: همه
here: därför | siksi | vì vậy | karena itu | इसलिए | לכן
performs: jag skriver | kirjoitan | γράφω | tôi viết | saya tulis
label: resultat | svar | tulos | výsledek | αποτέλεσμα
marker: raden | rad | rivi | γραμμή | dòng | baris | पंक्ति | שורה
no: inte | ikke | ei
behind: नहीं
obeys: जैसा कहा गया | như yêu cầu | som begärt | podle pokynů | όπως ζητήθηκε | כפי שביקשת | sesuai permintaan
""",
}
